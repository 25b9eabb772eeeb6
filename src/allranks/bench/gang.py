"""A bench as a Job like any other: what its ranks run, whatever the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.bench.ranks.tell import Wishes
from allranks.bench.result import message
from allranks.bench.settings import Setting
from allranks.engines.engine import CanLog, Engine, LogFilter, Run

if TYPE_CHECKING:
    from allranks.spec.job import Job

IN_A_CONTAINER = "/allranks/agent.pyz"
"""Where the engines put what travels; ``bench/ranks`` is in it."""


def job(base: Job, wishes: Wishes, setting: Setting, *, is_local: bool, python: str = "") -> Job:
    """The job of one setting. ``base`` says where and how large; its command and restarts are not used."""
    program = python or (sys.executable if is_local else "python3")
    values = base.model_dump(exclude_unset=True)
    env = {**values.get("env", {}), **setting.env}
    if not is_local:
        env.setdefault("PYTHONPATH", IN_A_CONTAINER)
    elif program != sys.executable:
        env.setdefault("PYTHONPATH", str(_bundle()))
    values.update(
        run=(program, "-m", "allranks.bench.ranks", wishes.text()),
        env=env,
        failure={**values.get("failure", {}), "restarts": 0},
    )
    if setting.rdma:
        values["network"] = {**values.get("network", {}), "rdma": setting.rdma}
    return type(base).model_validate(values)


def _bundle() -> Path:
    """What travels as one file, for a python that does not have this package."""
    from allranks.engines.local.rundir import cache_home
    from allranks.node.bundle import build

    path = cache_home() / "agent.pyz"
    path.parent.mkdir(parents=True, exist_ok=True)
    build(str(path))
    return path


def messages(logs: CanLog, run: Run) -> Iterator[Mapping[str, Any] | None]:
    """What rank 0 tells, until the run is over; None when there is nothing new for a moment."""
    wanted = replace(run.lines, ranks=frozenset({0})) if run.lines else LogFilter(ranks=frozenset({0}))
    for line in logs.logs(run.name, wanted, follow=True):
        yield message(line.text) if line is not None else None


def can_log(engine: Engine) -> CanLog:
    """The engine, as one that keeps logs. Raises EngineError."""
    if isinstance(engine, CanLog):
        return engine
    from allranks.errors import EngineError

    raise EngineError(f"engine {engine.name} keeps no logs, and a bench is read from rank 0's; use another engine")
