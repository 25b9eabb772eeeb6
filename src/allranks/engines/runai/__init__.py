"""Distributed PyTorch workloads of Run:ai."""
