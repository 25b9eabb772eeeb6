"""What runs on every node. Standard library only, Python 3.8 and later: it travels as one file."""
