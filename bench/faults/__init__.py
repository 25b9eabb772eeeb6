"""What `bench/operators.py` is made of: gangs on a cluster, and what they meet there."""
