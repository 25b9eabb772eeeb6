"""``allranks serve``: start a gang that answers HTTP requests with one model, and follow it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks import engines
from allranks.cli import say
from allranks.cli.choose import cannot
from allranks.errors import SpecError, Unreachable, UsageError
from allranks.serving import probe

if TYPE_CHECKING:
    from allranks.engines.engine import Engine, Plan, Run
    from allranks.spec.service import Service

DEFAULT_SPEC = "service.yaml"
POLL = 0.2
PATIENCE = 5.0
"""Seconds for an answer to whether the service can be used: a server of the user's own may have to look."""
SILENCE = 10.0
"""Seconds before it is said what is awaited of ranks that run."""


@click.command()
@click.argument("spec", required=False)
@click.option("--model", metavar="M", help="Folder of the model, or its name on the hub.")
@click.option("--engine", default="local", metavar="E", help="Where it runs.  [default: local]")
@click.option("--name", metavar="NAME", help="Name of the run.  [default: the spec's, or the model's]")
@click.option("--nodes", type=int, metavar="N", help="Nodes of the gang.")
@click.option("--ranks", type=int, metavar="R", help="Ranks of each node: the pieces that the model is cut into.")
@click.option("--port", type=int, metavar="P", help="Port of node 0.  [default: 8000]")
@click.option("--host", metavar="H", help="Address to listen on.  [default: this machine alone]")
@click.option("--dtype", metavar="D", help="auto, float32, bfloat16 or float16.")
@click.option("--shard", metavar="S", help="auto, transformers or deepspeed.")
@click.option("--restarts", type=click.IntRange(0), metavar="N", help="How often a broken gang starts again.")
@click.option("--detach", "-d", is_flag=True, help="Return once it is ready, and let it go on by itself.")
def command(spec: str | None, engine: str, detach: bool, **options: Any) -> int:
    """Serve the model of SPEC.yaml (kind: Service), or of --model, with one gang.

    Node 0 answers at http://HOST:PORT: OpenAI's /v1/completions and /v1/chat/completions, /generate, /health, /ready,
    /metrics, and a page to chat at /. It stays until: allranks cancel NAME
    """
    from allranks.engines.engine import CanAnswer

    chosen = engines.get_usable(engine)
    service, folder = _service(spec, options)
    plan = plan_of(chosen, service, folder)
    detach = detach or service.replicas > 1  # lines of several gangs would tell nothing
    with say.notes(plan.notes):
        run = chosen.submit(plan, detach=detach)
    if isinstance(chosen, CanAnswer):
        ready: Callable[[], bool] = partial(chosen.answers, plan)
    else:
        ready = partial(probe.answers, plan.address + service.ready, PATIENCE)
    if detach:
        return _until_ready(run, ready, plan.address)
    say.line(f"{run.name} will answer at {plan.address}")
    from allranks.cli.follow import follow

    return follow(chosen, run)


def plan_of(engine: Engine, service: Service, folder: Path) -> Plan:
    """Render a service. Raises SpecError for a model that a gang of that size cannot serve."""
    from allranks.engines.engine import CanServe

    if not isinstance(engine, CanServe):
        raise cannot(engine, "runs no services", CanServe)
    return engine.plan_service(service, folder)


def _service(spec: str | None, options: Mapping[str, Any]) -> tuple[Service, Path]:
    """The service of a file, of options, or of a file that options override; and where its relative paths start."""
    from pydantic import ValidationError

    from allranks.spec.load import load
    from allranks.spec.service import Service
    from allranks.spec.wording import sentence

    values: dict[str, Any] = {}
    folder = Path.cwd()
    if spec is None and not options["model"]:
        if not Path(DEFAULT_SPEC).is_file():
            raise UsageError("nothing to serve: name a spec (allranks serve service.yaml) or --model FOLDER")
        spec = DEFAULT_SPEC
    if spec is not None:
        loaded = load(spec)
        if not isinstance(loaded, Service):
            raise SpecError(f"{spec} is a kind: Job; start it with: allranks run {spec}")
        values = loaded.model_dump(exclude_unset=True)
        folder = Path.cwd() if spec == "-" else Path(spec).absolute().parent
    values |= _changes(options, values)
    try:
        return Service.model_validate(values), folder
    except ValidationError as error:
        raise UsageError("\n".join(sentence(one, Service) for one in error.errors())) from error


def _changes(options: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    named = ("name", "nodes", "port", "host", "dtype", "shard")
    changes: dict[str, Any] = {field: options[field] for field in named if options[field] is not None}
    if options["ranks"] is not None:
        changes["ranks_per_node"] = options["ranks"]
    if options["restarts"] is not None:
        changes["failure"] = {**values.get("failure", {}), "restarts": options["restarts"]}
    if options["model"] is not None:
        model = options["model"]
        changes["model"] = str(Path(model).absolute()) if Path(model).exists() else model
    if "name" not in values and "name" not in changes:
        from allranks.spec.command import label

        changes["name"] = label(Path(changes.get("model", "service")).name)
    return changes


def _until_ready(run: Run, ready: Callable[[], bool], address: str) -> int:
    """Say what is awaited until the service answers, then let go of it; its exit code if it ends before."""
    from allranks.cli import signals, words
    from allranks.cli.follow import EXIT_UNTOLD
    from allranks.cli.news import News

    news, say_at = News(), time.monotonic() + SILENCE
    with signals.collected() as received:
        while not (status := run.status()).is_over:
            say.lines(news.of(status, time.monotonic()))
            if received:
                signals.cancel(run, received.pop())
            elif _is_ready(ready):
                run.detach()
                say.line(f"{run.name} answers at {address}; end it with: allranks cancel {run.name}")
                click.echo(address)
                return 0
            elif status.phase == "running" and time.monotonic() > say_at:
                say_at = math.inf
                say.line(f"{run.name} runs, and does not answer yet at {address}")
            time.sleep(POLL)
    say.lines(words.ending(status))
    return status.exit_code or EXIT_UNTOLD


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except Unreachable:
        return False  # the status says so, and ends the wait when it lasts
