"""What every engine tells its agents of a job, whatever it runs them on: the common part of a ``node.gang.Gang``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allranks import __version__

if TYPE_CHECKING:
    from allranks.spec.job import Job


def agents(job: Job, engine: str) -> dict[str, Any]:
    """The fields of ``Gang`` that follow from the job alone; times are seconds."""
    failure = job.failure
    return {
        "run": job.name,
        "engine": engine,
        "version": __version__,
        "nodes": job.nodes,
        "ranks_per_node": job.ranks,
        "launcher": job.launcher,
        "argv": list(job.argv),
        "env": dict(job.env),
        "restarts": failure.restarts,
        **({"final": list(failure.final)} if failure.final else {}),
        **({"serves": True} if job.serves else {}),
        "start_timeout": failure.start_timeout.seconds,
        "hang_timeout": failure.hang_timeout.seconds,
        "grace": failure.grace.seconds,
        "deadline": failure.deadline.seconds if failure.deadline else None,
        "log_limit": int(job.logs.limit),
        "preflight": job.preflight,
    }
