"""Where a gang can run: a name for each engine, and the engine itself once somebody asks for it.

Nothing is imported here but the standard library, on Python 3.8 too: this package travels into containers
because the engines' ``identity`` modules do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.engines.engine import Engine

ENGINES: dict[str, str] = {"local": "allranks.engines.local.control"}
"""Name to the module that holds ``ENGINE``."""

LATER: dict[str, str] = {
    "mpijob": "MPIJob of the Kubeflow MPI operator",
    "trainjob": "TrainJob of Kubeflow Trainer",
    "pytorchjob": "PyTorchJob of the Kubeflow training operator",
    "jobset": "JobSet on any Kubernetes",
    "runai": "Run:ai",
    "ray": "a Ray cluster",
}
"""Engines that are not in this version, and what each will be."""


def get(name: str) -> Engine:
    """The engine of that name. Raises UsageError for an unknown one, EngineError for one of a later version."""
    from importlib import import_module

    if name in ENGINES:
        engine: Engine = import_module(ENGINES[name]).ENGINE
        return engine
    raise _missing(name)


def all_engines() -> list[Engine]:
    """Every engine of this version."""
    return [get(name) for name in ENGINES]


def usable() -> list[Engine]:
    """Return the engines that can be used here, and so the ones that may have runs."""
    return [engine for engine in all_engines() if not engine.available()]


def _missing(name: str) -> Exception:
    from allranks.errors import EngineError, UsageError

    if name in LATER:
        return EngineError(f"engine {name} is not in this version of allranks; it has: {', '.join(ENGINES)}")
    from difflib import get_close_matches

    near = get_close_matches(name, [*ENGINES, *LATER], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"no such engine: {name}; allowed: {', '.join(ENGINES)}{hint}")
