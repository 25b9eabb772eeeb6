"""Says when a rank has torch and is at its first line."""

import time

import torch

print(f"FIRST {time.time():.4f} with torch {torch.__version__}", flush=True)
