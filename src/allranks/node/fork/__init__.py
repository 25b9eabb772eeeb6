"""The user's own interpreter, imported once and forked into ranks."""
