"""Where a gang can run: a name for each engine, and the engine itself once somebody asks for it.

Nothing is imported here but the standard library, on Python 3.8 too: this package travels into containers
because the engines' ``identity`` modules do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.engines.engine import Engine, Pretend

ENGINES: dict[str, str] = {
    "local": "allranks.engines.local.control",
    "mpijob": "allranks.engines.mpijob.control",
    "trainjob": "allranks.engines.trainjob.control",
    "pytorchjob": "allranks.engines.pytorchjob.control",
    "jobset": "allranks.engines.jobset.control",
    "runai": "allranks.engines.runai.control",
    "ray": "allranks.engines.ray.control",
}
"""Name to the module that holds ``ENGINE``."""


def get(name: str) -> Engine:
    """The engine of that name. Raises UsageError for an unknown one."""
    from importlib import import_module

    if name in ENGINES:
        engine: Engine = import_module(ENGINES[name]).ENGINE
        return engine
    raise _missing(name)


def get_usable(name: str) -> Engine:
    """The same, where it can be used here. Raises EngineError, saying why it cannot."""
    engine = get(name)
    if reason := engine.available():
        from allranks.errors import EngineError

        raise EngineError(f"engine {name} cannot be used here: {reason}")
    return engine


def pretended() -> list[str]:
    """The engines whose pods a local node can pretend to be: those with a ``pretend.py`` in their folder."""
    return sorted(file.parent.name for file in Path(__file__).parent.glob("*/pretend.py") if _has_identity(file))


def _has_identity(file: Path) -> bool:
    return file.with_name("identity.py").exists()


def pretend(name: str) -> Pretend:
    """What pods of that engine see. Raises UsageError, naming the engines that can be pretended."""
    from importlib import import_module

    allowed = pretended()
    if name in allowed:
        module: Pretend = import_module(f"allranks.engines.{name}.pretend")
        return module
    from allranks.errors import UsageError

    raise UsageError(f"--as {name}: no such engine to pretend; allowed: {', '.join(allowed)}{_nearest(name, allowed)}")


def all_engines() -> list[Engine]:
    """Every engine of this version."""
    return [get(name) for name in ENGINES]


def usable() -> list[Engine]:
    """Return the engines that can be used here, and so the ones that may have runs."""
    return [engine for engine in all_engines() if not engine.available()]


def _missing(name: str) -> Exception:
    from allranks.errors import UsageError

    return UsageError(f"no such engine: {name}; allowed: {', '.join(ENGINES)}{_nearest(name, list(ENGINES))}")


def _nearest(name: str, allowed: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, allowed, n=1)
    return f"; did you mean {near[0]}?" if near else ""
