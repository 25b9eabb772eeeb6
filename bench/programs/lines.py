"""A rank that prints RATE numbered lines a second for SECONDS, in portions of a fiftieth of a second."""

import os
import sys
import time

rate, seconds = int(sys.argv[1]), float(sys.argv[2])
rank, portion = os.environ["RANK"], max(1, rate // 50)
begin = time.monotonic()
for first in range(0, int(rate * seconds), portion):
    text = "".join(f"{rank} {number} {'x' * 80}\n" for number in range(first, first + portion))
    os.write(1, text.encode())
    time.sleep(max(0.0, begin + (first + portion) / rate - time.monotonic()))
