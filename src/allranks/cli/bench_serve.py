"""``allranks bench serve``: load on an endpoint that speaks OpenAI's API, ours or a peer's."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from allranks.cli import output as out
from allranks.errors import EngineError, UsageError

if TYPE_CHECKING:
    from allranks.bench.load.drive import Load
    from allranks.bench.load.result import Row
    from allranks.bench.load.wire import Endpoint
    from allranks.bench.load.wishes import Wanted

EXIT_FAILED = 1
OUR_KEY = "OPENAI_API_KEY"
MODELS_WAIT = 30.0
"""Seconds for the endpoint to list its models."""


@click.command()
@click.argument("url")
@click.option("--clients", metavar="N,..", help="Closed loop.  [default: 1,8,32]")
@click.option("--rate", metavar="R,..", help="Open loop: Poisson arrivals a second.")
@click.option("--requests", type=int, metavar="N", help="Of each load.  [default: 4 a client]")
@click.option("--rounds", type=int, metavar="N", help="Of clients that wait for each other.")
@click.option("--duration", metavar="T", help="Ask nothing new after it, as in 90s.")
@click.option("--warm-up", type=int, default=2, metavar="N", help="Requests before.  [default: 2]")
@click.option("--prompt", default="128", metavar="LEN", help="Tokens, as in 128 or 64-512.  [default: 128]")
@click.option("--new", default="128", metavar="LEN", help="Tokens to answer with.  [default: 128]")
@click.option("--api", type=click.Choice(["completions", "chat"]), default="completions", metavar="A", help="Or chat.")
@click.option("--text", is_flag=True, hidden=True)
@click.option("--vocabulary", type=click.IntRange(10), default=900, hidden=True)
@click.option("--model", metavar="M", help="[default: the endpoint's first]")
@click.option("--body", metavar="JSON", help="More fields; null takes one out.")
@click.option("--no-stream", is_flag=True, hidden=True)
@click.option("--key-env", metavar="NAME", help=f"Of the API key.  [default: {OUR_KEY}]")
@click.option("--timeout", default="60s", metavar="T", help="For one answer.  [default: 60s]")
@click.option("--deadline", default="10m", metavar="T", help="For each load.  [default: 10m]")
@click.option("--seed", type=int, default=0, hidden=True)
@click.option("--png", type=click.Path(), metavar="FILE", help="Draw it.")
@out.output_option("json", "yaml")
def command(url: str, output: str | None, **options: Any) -> int:
    """Tell how URL, which speaks OpenAI's API, bears load; exits with 1 if a request failed."""
    endpoint = _endpoint(url, options["key_env"])
    loads, wanted = _loads(options), _wanted(options)
    if options["png"]:
        out.must_draw(options["png"])
    rows, interrupted = asyncio.run(_measure(endpoint, loads, wanted, options, err=output is not None))
    if options["png"] and rows:
        from allranks.bench.load.plot import png

        png(rows, Path(options["png"]), f"allranks bench serve {url}")
        click.echo(f"picture: {options['png']}", err=output is not None)
    if output:
        asked = {name: options[name] for name in ("api", "prompt", "new", "seed")}
        out.write({"url": url, **asked, "rows": [row.to_json() for row in rows], "complete": not interrupted}, output)
    if interrupted:
        return 128 + interrupted
    return EXIT_FAILED if any(row.errors for row in rows) else 0


async def _measure(
    endpoint: Endpoint, loads: Sequence[Load], wanted: Wanted, options: dict[str, Any], *, err: bool
) -> tuple[list[Row], int]:
    """Drive one load after the other and show each row; also the signal that ended it early, or 0."""
    from dataclasses import replace

    from allranks.bench.load import result, table
    from allranks.bench.load.drive import Driver

    if not wanted.model:
        wanted = replace(wanted, model=await _model(endpoint))
    await _warm_up(endpoint, wanted, loads[0], options["warm_up"])
    drivers = [Driver(endpoint, load, replace(wanted, seed=load.seed + number).wishes())
               for number, load in enumerate(loads)]  # fmt: skip
    received: list[int] = []
    running = asyncio.get_running_loop()

    def end(number: int) -> None:
        received.append(number)
        for driver in drivers:
            driver.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, end, number)
    rows: list[Row] = []
    for text in table.HEAD:
        click.echo(text, err=err)
    for driver in drivers:
        if received:
            break
        row = result.row(driver.load, await driver.run(), driver.found, wanted.stream)
        if row.asked:
            rows.append(row)
            click.echo(table.line(row), err=err)
    for note in (note for row in rows for note in table.notes(row)):
        click.echo(note, err=err)
    return rows, received[0] if received else 0


async def _model(endpoint: Endpoint) -> str:
    """The first model that the endpoint lists. Raises EngineError."""
    from allranks.bench.load.wire import Exchange, Failed

    exchange = Exchange(endpoint)
    where = f"http{'s' if endpoint.secure else ''}://{endpoint.host}:{endpoint.port}{endpoint.base}/v1/models"

    async def listed() -> bytes:
        await exchange.ask("GET", "/v1/models")
        return await exchange.whole()

    try:
        body = await asyncio.wait_for(listed(), MODELS_WAIT)
    except (Failed, asyncio.TimeoutError) as error:
        why = str(error) or f"no whole answer within {MODELS_WAIT:g} s"
        raise EngineError(f"{where} does not answer: {why}") from error
    finally:
        exchange.close()
    if exchange.status in (401, 403):
        raise EngineError(f"{where} wants a key; export it, and name its variable with --key-env")
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"{where} lists no model (status {exchange.status}); name one with --model") from error


async def _warm_up(endpoint: Endpoint, wanted: Wanted, load: Load, count: int) -> None:
    """Ask ``count`` times, one after the other. Raises EngineError for the first that fails."""
    from allranks.bench.load.ask import Seen, ask

    for wish, _ in zip(wanted.wishes(), range(count), strict=False):
        seen = Seen(0.0)
        await ask(endpoint, wish, load.timeout, seen)
        if seen.error:
            raise EngineError(f"the first request failed ({seen.error}): {seen.message}")


def _endpoint(url: str, key_env: str | None) -> Endpoint:
    from allranks.bench.load.wire import Endpoint

    key = os.environ.get(key_env or OUR_KEY, "").strip()
    if key_env and not key:
        raise UsageError(f"--key-env: {key_env} is not set in this shell; export it first")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"--key-env: what {key_env or OUR_KEY} holds can be no key: it has characters beyond ASCII")
    try:
        return Endpoint.parse(url, key)
    except ValueError as error:
        raise UsageError(f"URL: {error}") from error


def _loads(options: dict[str, Any]) -> list[Load]:
    from allranks.bench.load.drive import Load

    if options["clients"] and options["rate"]:
        raise UsageError("--clients and --rate: allowed is one of them")
    for name, least in (("requests", 1), ("rounds", 1), ("warm_up", 0)):
        if options[name] is not None and options[name] < least:
            raise UsageError(f"--{name.replace('_', '-')}: found {options[name]}; allowed is {least} or more")
    if options["rounds"] and (options["rate"] or options["requests"]):
        raise UsageError("--rounds: not with --rate or --requests; a round is one request of each client")
    times = {name: _seconds(name, options[name]) for name in ("timeout", "deadline")}
    duration = _seconds("duration", options["duration"]) if options["duration"] else float("inf")
    # As long as a duration is asked for, the number of requests is not what ends it.
    most = options["requests"] or (10**9 if options["duration"] else 0)
    shared = {"duration": duration, "seed": options["seed"], **times}
    if options["rate"]:
        rates = _numbers("--rate", options["rate"], r"\d{1,6}(\.\d+)?")
        return [Load(rate=rate, requests=most or 100, **shared) for rate in rates]
    counts = map(int, _numbers("--clients", options["clients"] or "1,8,32", r"\d{1,6}"))
    each = options["rounds"] or 4
    rounds = bool(options["rounds"])
    return [Load(clients=count, requests=most or each * count, rounds=rounds, **shared) for count in counts]


def _wanted(options: dict[str, Any]) -> Wanted:
    from allranks.bench.load.wishes import Wanted

    try:
        extra = json.loads(options["body"] or "{}")
    except ValueError as error:
        raise UsageError(f"--body is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise UsageError("--body: allowed is an object, as in '{\"ignore_eos\": true}'")
    return Wanted(
        options["model"] or "", options["api"], _lengths("--prompt", options["prompt"]),
        _lengths("--new", options["new"]), options["vocabulary"], options["text"], not options["no_stream"],
        options["seed"], extra,
    )  # fmt: skip


def _numbers(option: str, text: str, pattern: str) -> list[float]:
    """Of ``1,8,64``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(pattern, part) and float(part) > 0 for part in parts):
        raise UsageError(f"{option}: found {text!r}; allowed are numbers above 0, as in 1,8,64")
    return [float(part) for part in parts]


def _lengths(option: str, text: str) -> tuple[int, int]:
    """Of ``128`` or ``64-512``."""
    found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", text.strip())
    low = int(found.group(1)) if found else 0
    high = int(found.group(2) or low) if found else 0
    if not 1 <= low <= high:
        raise UsageError(f"{option}: found {text!r}; allowed is a number of tokens, as in 128, or two, as in 64-512")
    return low, high


def _seconds(name: str, text: str) -> float:
    from allranks.spec.units import Duration

    try:
        seconds = Duration.parse(text).seconds
    except ValueError as error:
        raise UsageError(f"--{name}: found {text!r}; {error}") from error
    if not seconds:
        raise UsageError(f"--{name}: found {text!r}; allowed is more than nothing")
    return seconds
