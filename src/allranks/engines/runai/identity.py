"""How a node of a Run:ai workload learns its place: a distributed PyTorch workload is a PyTorchJob underneath."""

from __future__ import annotations

from allranks.engines.pytorchjob.identity import place

__all__ = ["place"]
