"""Mistakes in hand-written manifests, each found by one small rule."""
