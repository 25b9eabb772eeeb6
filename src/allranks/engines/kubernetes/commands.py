"""Commands of a gang that stays: given to its coordinator, watched in its record, stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.engines.engine import LogFilter
from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.cancel import ask
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.pods import Pod
from allranks.errors import EngineError, UsageError
from allranks.node.ask import MOST_BYTES
from allranks.node.status import Status

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.watch import Watch

STOP_WITHIN = 120.0
"""Seconds for a stopped command to be over, its grace included."""
POLL = 0.1


def staying(plan: Plan) -> Plan:
    """The same plan for a gang that is idle until it is given a command."""
    documents = []
    for document in plan.documents:
        data = document.get("data") or {}
        if document["kind"] == "ConfigMap" and delivery.PLAN in data:
            told = json.dumps({**json.loads(data[delivery.PLAN]), "stays": True}, indent=1)
            document = {**document, "data": {**data, delivery.PLAN: told + "\n"}}
        documents.append(document)
    return replace(plan, documents=tuple(documents))


class Given:
    """A command that a gang was given."""

    def __init__(self, client: Client, watch: Watch, pod: Pod, run: str, number: int, first: int) -> None:
        self._client, self._watch, self._pod, self._number = client, watch, pod, number
        self.name, self.lines = run, LogFilter(command=number, since=first)

    def status(self) -> Status:
        return self._watch.status().of_command(self._number)

    def cancel(self, *, reason: str, code: int) -> None:
        """End it. Raises EngineError when it does not end."""
        ask(self._client, self._pod, what="stop", command=self._number, reason=reason, code=code)
        if not self._until_over(STOP_WITHIN):
            way_out = f"end it all with 'allranks cancel {self.name}'"
            raise EngineError(f"gang {self.name}: its record does not say that the command has ended; {way_out}")

    def detach(self) -> None:
        """It does not hang on this process."""
        self._watch.close()

    def wait(self, timeout: float) -> bool:
        over = self._until_over(timeout)
        self._watch.close()
        return over

    def _until_over(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while not self.status().is_over:
            if time.monotonic() > until:
                return False
            time.sleep(POLL)
        return True


def give(client: Client, watch: Watch, argv: Sequence[str], restarts: int) -> Given:
    """Have the gang run a command. Raises EngineError, UsageError."""
    if sum(len(word.encode("utf-8", "surrogateescape")) for word in argv) > MOST_BYTES:
        raise UsageError(f"the command is longer than {MOST_BYTES // 1024} KiB; put its arguments into a file")
    status = watch.status()
    pod = must_be_up(watch, status)
    answer = ask(client, pod, what="exec", argv=list(argv), restarts=restarts)
    if "refused" not in answer:
        return Given(client, watch, pod, status.name, answer["command"], answer["attempt"])
    way_out = f"\nEnd it with 'allranks cancel {status.name}'."
    if "command" in answer:
        way_out = (
            f"\nWatch it with 'allranks logs -f {status.name}', stop it with "
            f"'allranks cancel --command {status.name}', or start another gang: 'allranks up --name OTHER'."
        )
    raise EngineError(f"gang {status.name}: {answer['refused']}{way_out}")


def running(client: Client, watch: Watch) -> Given:
    """The command that the gang runs. Raises EngineError when it runs none."""
    status = watch.status()
    pod = must_be_up(watch, status)
    there = [command for command in status.commands if not command.is_over]
    if not there:
        way_out = f"end the gang itself with 'allranks cancel {status.name}'"
        raise EngineError(f"gang {status.name} runs no command; {way_out}")
    return Given(client, watch, pod, status.name, there[-1].number, there[-1].attempt)


def must_be_up(watch: Watch, status: Status) -> Pod:
    """Node 0's pod of a gang that takes commands. Raises EngineError."""
    if status.is_over:
        raise EngineError(f"{status.name} is over ({status.phase}); start it again with 'allranks up'")
    pod = next((one for one in watch.pods if one.node == 0), None)
    if pod is None or not pod.is_running:
        raise EngineError(f"gang {status.name} is not there yet: {status.reason}; see: allranks status {status.name}")
    if status.attempts and not status.stays:
        raise EngineError(f"run {status.name} has a command of its own, and ends with it; for a gang to exec on: "
                          f"'allranks up --engine {status.engine} --name OTHER'")  # fmt: skip
    return pod
