"""Where each rank is, whether the gang hangs, and who keeps the others waiting."""
