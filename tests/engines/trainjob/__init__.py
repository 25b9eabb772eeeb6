"""The engine trainjob."""
