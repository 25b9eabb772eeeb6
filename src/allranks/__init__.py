"""allranks: one file says what a gang of ranks is, any engine runs it.

Public names are loaded on first use, so that ``import allranks`` costs nothing in the agent.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["Error", "Job", "Service", "__version__", "checkpoint", "load"]

_HOME = {
    "Error": "allranks.errors",
    "Job": "allranks.spec.job",
    "Service": "allranks.spec.service",
    "load": "allranks.spec.load",
}
_MODULES = ("checkpoint",)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"allranks.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'allranks' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
