"""What a node's network is, what NCCL will make of it, and the least that must be set. Standard library, Python 3.8."""
