"""``allranks bench``: how fast the collectives of a gang are, and what that is good for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks import engines
from allranks.cli import output as out
from allranks.errors import UsageError

if TYPE_CHECKING:
    from allranks.bench.ranks.tell import Wishes
    from allranks.bench.result import Curve
    from allranks.bench.settings import Setting
    from allranks.spec.job import Job

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv")
BACKENDS = ("auto", "nccl", "gloo")
MEMORY = ("nccl", "symmetric", "torch")


class Bench(click.Command):
    """Measures a gang, but ``bench serve`` is a command of its own: it asks an endpoint that is there already."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        """Hand on what comes behind ``serve``."""
        if args[:1] != ["serve"]:
            return super().make_context(info_name, args, *rest, **extra)
        from allranks.cli.bench_serve import command as serve

        return serve.make_context(f"{info_name} serve", args[1:], *rest, **extra)


@click.command(cls=Bench)
@click.argument("collective", required=False, type=click.Choice([*NAMES, "all"]), metavar="[COLLECTIVE]")
@click.option("--engine", default="local", metavar="E", help="Where it runs.  [default: local]")
@click.option("--spec", metavar="FILE", help="A job's file; all but its command.")
@click.option("--name", default="bench", metavar="NAME", hidden=True)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="Nodes of the gang.")
@click.option("--ranks", type=click.IntRange(1), metavar="R", help="Ranks of each node.")
@click.option("--min-size", default="32K", metavar="SIZE", help="Smallest message.  [default: 32K]")
@click.option("--max-size", metavar="SIZE", help="[default: 16G with GPUs, else 64M]")
@click.option("--iterations", default=20, type=click.IntRange(3), hidden=True)
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", metavar="B", help="nccl or gloo.")
@click.option("--no-graphs", is_flag=True, hidden=True)
@click.option("--memory", type=click.Choice(MEMORY), default="nccl", hidden=True)
@click.option("--env", "-e", multiple=True, metavar="K=V", help="For every rank; may be repeated.")
@click.option("--python", metavar="PATH", hidden=True)
@click.option("--compare", metavar="A,B", help="Settings: rdma,tcp or default,NCCL_ALGO=Tree")
@click.option("--pairs", is_flag=True, help="Which node is slow or broken? All pairs.")
@click.option("--bisect", is_flag=True, help="The same by halves, in fewer rounds.")
@click.option("--from-log", type=click.Path(), metavar="FILE", help="What nccl-tests printed; - is stdin.")
@click.option("--min-busbw", type=float, metavar="GB/S", help="Exit with 1 when the best is lower.")
@click.option("--png", type=click.Path(), metavar="FILE", help="Draw the curves.")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write a page, complete in itself.")
@out.output_option("json", "yaml")
def command(output: str | None, **options: Any) -> int:
    """Measure all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, sendrecv, all; serve URL: an endpoint."""
    from allranks.cli.bench_show import Show

    _check(options)
    show = Show(output, options["png"], options["html"], options["min_busbw"])
    if options["from_log"]:
        return show.curves([_read(options["from_log"])], complete=True)
    if options["pairs"] or options["bisect"]:
        return _rounds(options, show)
    curves, complete = [], True
    for setting in _settings(options["compare"]):
        curve = _measure(options, setting, show)
        curves.append(curve)
        complete = complete and curve.ended
        if show.interrupted:
            break
    return show.curves(curves, complete=complete)


def _check(options: dict[str, Any]) -> None:
    """Raise for what cannot be together or cannot be written."""
    if options["pairs"] and options["bisect"]:
        raise UsageError("--pairs and --bisect: allowed is one of them")
    if options["compare"] and (options["pairs"] or options["bisect"] or options["from_log"]):
        raise UsageError("--compare: it compares curves; not with --pairs, --bisect or --from-log")
    if options["png"]:
        out.must_draw(options["png"], "; or --html, which does not")
    if options["html"]:
        out.must_have_folder("html", options["html"])


def _read(path: str) -> Curve:
    from allranks.bench.fromlog import NotALog, read

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--from-log {path}: {error.strerror}") from error
    try:
        return read(text, label="nccl-tests")
    except NotALog as error:
        raise UsageError(f"--from-log {path} is no output of nccl-tests: {error}") from error


def _settings(text: str | None) -> Sequence[Setting]:
    from allranks.bench.settings import Setting, parse

    try:
        return parse(text) if text else [Setting()]
    except ValueError as error:
        raise UsageError(f"--compare: {error}") from error


def _measure(options: dict[str, Any], setting: Setting, show: Any) -> Curve:
    from allranks.cli.bench_run import sweep

    return sweep(*_gang(options, _wishes(options), setting), setting.label, show)


def _rounds(options: dict[str, Any], show: Any) -> int:
    from allranks.bench.settings import Setting
    from allranks.cli.bench_run import rounds

    return rounds(*_gang(options, _wishes(options), Setting()), show)


def _gang(options: dict[str, Any], wishes: Wishes, setting: Setting) -> tuple[Any, Any]:
    """The engine, and the plan of one setting's gang."""
    from allranks.bench.gang import can_log, job

    engine = engines.get_usable(options["engine"])
    can_log(engine)
    base, folder = _base(options)
    made = job(base, wishes, setting, is_local=engine.name == "local", python=options["python"] or "")
    return engine, engine.plan(made, folder)


def _base(options: dict[str, Any]) -> tuple[Job, Path]:
    """What the gang is but for its command, and the folder that its paths start from."""
    from allranks.cli.spec_options import job_of

    words = {"pretended": None, "launcher": None, "restarts": 0, **options}
    if not options["spec"] and options["nodes"] is None:
        words["nodes"] = 2 if options["pairs"] or options["bisect"] else 1
    return job_of({**words, "command": ("bench",)})


def _wishes(options: dict[str, Any]) -> Wishes:
    from allranks.bench.ranks.tell import Wishes

    named = options["collective"] or "all_reduce"
    smallest, largest = _size("--min-size", options["min_size"]), _size("--max-size", options["max_size"])
    if largest and largest < smallest:
        raise UsageError(
            f"--max-size: found {options['max_size']}; allowed is at least --min-size, {options['min_size']}"
        )
    graphs = 0 if options["no_graphs"] else Wishes.graph_below
    return Wishes(
        collectives=NAMES if named == "all" else (named,), smallest=smallest, largest=largest,
        iterations=options["iterations"], backend=options["backend"], graph_below=graphs,
        memory=options["memory"],        rounds="pairs" if options["pairs"] else "bisect" if options["bisect"] else "",
    )  # fmt: skip


def _size(option: str, text: str | None) -> int:
    """Bytes of ``32K``, ``1M``, ``16G``, in powers of two, as nccl-tests takes them; 0 of nothing."""
    import re

    if text is None:
        return 0
    found = re.fullmatch(r"(\d{1,12})([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    size = int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2).upper()] if found else 0
    if not 4 <= size <= 1 << 40:
        raise UsageError(f"{option}: found {text!r}; allowed is a size from 4 bytes to 1024G, such as 32K, 1M or 16G")
    return size
