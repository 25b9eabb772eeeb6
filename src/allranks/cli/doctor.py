"""``allranks doctor``: what is wrong with this host, or with the nodes of a gang and the ways between them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks import engines
from allranks.cli import output as out
from allranks.cli import say, signals
from allranks.cli.choose import cannot, python_here
from allranks.cli.lines import tame
from allranks.cli.news import News
from allranks.errors import SpecError, UsageError
from allranks.node.verdict import EXIT_NEVER_COMPLETE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allranks.fabric.decide import Finding
    from allranks.node.status import Status

EXIT_ILL = 1
LONGEST = 600.0
"""Seconds for a gang to be scheduled and checked; the checks themselves take some."""


@click.command()
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Check a gang of so many nodes, not this host.")
@click.option("--engine", metavar="E", help="Where the gang runs.  [default: local]")
@click.option("--spec", metavar="FILE", help="A job's file: its image, resources, network and nodes; not its command.")
@click.option("--gpus", type=click.IntRange(0), default=0, metavar="N", help="GPUs that this host must have.")
@click.option("--rdma", type=click.Choice(["auto", "required", "off"]), default="auto", help="As network.rdma.")
@click.option("--rights", is_flag=True, help="Print the smallest Role with which --engine works; check nothing.")
@out.output_option("json", "yaml")
def command(
    nodes: int | None, engine: str | None, spec: str | None, gpus: int, rdma: str, rights: bool, output: str | None
) -> int:
    """Tell what is wrong here, why it matters, and how to mend it. Nothing is changed.

    With --nodes, --engine or --spec it runs as a gang, and also compares nodes and measures the ways between them; a
    job does the same before its first rank with `preflight: true`. Exits with 1 when there is an error.
    """
    if rights:
        return _tell_rights(engine, spec, output)
    if nodes is None and engine is None and spec is None:
        return _tell(_this_host(gpus, rdma), output, "this host")
    if gpus or rdma != "auto":
        raise UsageError("--gpus and --rdma: for a gang they are in its file; next: --spec job.yaml")
    status = _gang(nodes, engine or "local", spec)
    return _tell_gang(status, output)


def _tell_rights(name: str | None, spec: str | None, output: str | None) -> int:
    """A Role to apply; with a job's file in the job's namespace, and for what it asks."""
    from allranks.engines.engine import NeedsRights
    from allranks.spec import write

    if not name:
        raise UsageError("--rights: for which engine? next: allranks doctor --rights --engine jobset")
    engine = engines.get(name)
    if not isinstance(engine, NeedsRights):
        raise UsageError(f"--rights: {cannot(engine, 'asks nobody for rights', NeedsRights)}")
    job = _job(None, spec)[0] if spec else None
    role = engine.role(force_delete=bool(job and job.failure.force_delete))
    if job and job.schedule.namespace:
        role["metadata"]["namespace"] = job.schedule.namespace
    if output:
        out.write(role, output)
    else:
        click.echo(write.documents([role]), nl=False)
    return 0


def _this_host(gpus: int, rdma: str) -> list[Finding]:
    from allranks.fabric import doctor
    from allranks.fabric.tree import open_tree

    folders = {"the current folder": os.getcwd(), "the temporary folder": os.environ.get("TMPDIR", "/tmp")}
    needs = doctor.Needs(gpus, 2, rdma, folders)
    return doctor.examine(open_tree("/"), os.environ, python_here(), needs, doctor.Limits.read(folders))


def _gang(nodes: int | None, name: str, spec: str | None) -> Status:
    """Run a gang that does nothing but its preflight; its last status."""
    engine = engines.get_usable(name)
    job, folder = _job(nodes, spec)
    try:
        plan = engine.plan(job, folder)
    except SpecError as error:
        if spec:
            raise
        raise UsageError(f"--engine {name} without a job's file: {error}; next: --spec job.yaml") from error
    run = engine.submit(plan, detach=False)
    news, until = News(), time.monotonic() + LONGEST
    try:
        while not run.wait(0.2):
            say.lines(news.of(run.status(), time.monotonic()))
            if time.monotonic() > until:
                run.cancel(reason=f"the gang was not checked within {LONGEST:g} s", code=EXIT_NEVER_COMPLETE)
    except KeyboardInterrupt:
        signals.cancel(run, signal.SIGINT)
        raise
    return run.status()


def _job(nodes: int | None, spec: str | None) -> tuple[Any, Path]:
    from allranks.cli.spec_options import job_of

    words: dict[str, Any] = {"spec": spec, "command": ("true",), "name": "doctor", "nodes": nodes, "ranks": None}
    words.update(launcher=None, env=(), restarts=0)
    job, folder = job_of(words)
    return type(job).model_validate({**job.model_dump(exclude_unset=True), "preflight": True}), folder


def _tell_gang(status: Status, output: str | None) -> int:
    from allranks.fabric.decide import Finding

    findings = [Finding.from_json(one) for one in status.findings]
    who = f"{len(status.nodes)} nodes of engine {status.engine}"
    if status.phase != "succeeded" and not any(one.level == "error" for one in findings):
        nodes = tuple(cause.node for cause in status.causes[-1:] if cause.node is not None)
        findings.append(Finding("error", "gang", status.reason, f"allranks status {status.name}", "", nodes))
    return _tell(findings, output, who)


def _tell(findings: Sequence[Finding], output: str | None, who: str) -> int:
    ill = any(one.level == "error" for one in findings)
    if output:
        out.write({"findings": [one.to_json() for one in findings], "healthy": not ill}, output)
        return EXIT_ILL if ill else 0
    from allranks.fabric.agree import nodes_in_words

    console = out.console()
    for one in findings:
        where = f"{nodes_in_words(one.nodes)}: {one.where}" if one.nodes else one.where
        console.print(tame(f"{one.level}: {where}: {one.what}"), style=out.LEVELS.get(one.level, ""), soft_wrap=True)
        for title, text in (("why", one.why), ("fix", one.fix)):
            if text:
                console.print(tame(f"  {title}: {text}"), soft_wrap=True)
    if not findings:
        console.print(f"nothing is wrong with {who}, as far as can be seen from here")
    return EXIT_ILL if ill else 0
