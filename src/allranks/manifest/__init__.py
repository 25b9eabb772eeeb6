"""Manifests and launch commands that people wrote for other tools: read as they are, every value with its place."""
