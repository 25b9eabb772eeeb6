"""What a client asks of a gang: run a command, stop it, end it all. Signed like everything on the coordinator's port.

A client that holds the run's secret dials the coordinator itself; one that does not (the run is in a cluster) has
``ask PLAN REQUEST`` run on node 0.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping

from allranks.node import wire
from allranks.node.gang import Gang, load, read_secret

if TYPE_CHECKING:
    from allranks.node.course import Course

ANSWER_WAIT = 10.0
MOST_BYTES = 48 * 1024
UNANSWERED = 69


def answer(course: Course, request: Mapping[str, Any]) -> Dict[str, Any]:
    """The coordinator's side: do it, or say ``refused`` with the reason."""
    handle = {"exec": _exec, "stop": _stop, "cancel": _cancel}.get(str(request.get("what")))
    try:
        if handle is None:
            raise ValueError("no such request")
        return handle(course, request)
    except (KeyError, TypeError, ValueError) as error:
        return {"refused": f"cannot do {request.get('what')!r:.40}: {type(error).__name__}: {error}"}


def _exec(course: Course, request: Mapping[str, Any]) -> Dict[str, Any]:
    argv, restarts = request["argv"], int(request["restarts"])
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv) or not argv or not argv[0]:
        raise ValueError("argv is no command")
    if restarts < 0:
        raise ValueError("restarts is negative")
    running = course.commands.current
    if not course.gang.stays:
        return {"refused": "this gang ends with its own command"}
    if course.verdict is not None and course.verdict.whole:
        return {"refused": "the gang is about to end"}
    if running is not None:
        return {"refused": f"it runs another command: {running.line}", "command": running.number}
    given = course.give(argv, restarts)
    return {"command": given.number, "attempt": given.attempt}


def _stop(course: Course, request: Mapping[str, Any]) -> Dict[str, Any]:
    running = course.commands.current
    if running is None or running.number != request["command"]:
        return {"refused": "that command is over"}
    course.stop(str(request["reason"])[:300], int(request["code"]))
    return {"command": running.number}


def _cancel(course: Course, request: Mapping[str, Any]) -> Dict[str, Any]:
    if course.verdict is not None and course.verdict.whole:
        return {"refused": "the run is about to end"}
    course.cancel(str(request["reason"])[:300], int(request["code"]))
    return {"cancelled": course.gang.run}


def ask(gang: Gang, secret: bytes, **request: Any) -> Dict[str, Any]:
    """The client's side. Raises OSError or wire.WireError when there is no answer within ANSWER_WAIT seconds."""

    async def converse() -> Dict[str, Any]:
        line = await wire.dial(gang.coordinator, gang.port, secret)
        try:
            line.send(type="ask", **request)
            answered = await asyncio.wait_for(line.receive(), ANSWER_WAIT)
        except asyncio.TimeoutError:
            raise wire.WireError(f"the coordinator did not answer within {ANSWER_WAIT:g} s") from None
        finally:
            line.close()
        if answered is None:
            raise wire.WireError("the coordinator hung up")
        return answered

    return asyncio.run(converse())


def main(argv: List[str]) -> int:
    """``ask PLAN REQUEST``: the request is JSON, and so is the answer on stdout."""
    gang = load(argv[0])
    if gang.engine != "local":
        gang = replace(gang, coordinator="127.0.0.1")  # this is its node, and the name may not resolve
    try:
        answered = ask(gang, read_secret(gang.state), **json.loads(argv[1]))
    except (OSError, ValueError, wire.WireError) as error:
        print(error, file=sys.stderr)
        return UNANSWERED
    print(json.dumps(answered))
    return 0
