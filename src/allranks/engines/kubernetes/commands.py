"""Commands of a gang that stays: given to its coordinator, watched in its record, stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allranks.engines import given
from allranks.engines.engine import LogFilter
from allranks.engines.kubernetes import delivery
from allranks.engines.kubernetes.cancel import ask
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.pods import Pod
from allranks.errors import EngineError
from allranks.node.status import Status

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.watch import Watch

STOP_WITHIN = 120.0
"""Seconds for a stopped command to be over, its grace included."""


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
            raise given.goes_on(self.name)

    def detach(self) -> None:
        """It does not hang on this process."""
        self._watch.close()

    def wait(self, timeout: float) -> bool:
        over = self._until_over(timeout)
        if over:
            self._watch.close()
        return over

    def _until_over(self, timeout: float) -> bool:
        return self._watch.until(lambda: self.status().is_over, timeout)


def give(client: Client, watch: Watch, argv: Sequence[str], restarts: int) -> Given:
    """Have the gang run a command. Raises EngineError, UsageError."""
    given.must_fit(argv)
    status = watch.status()
    pod = must_be_up(watch, status)
    answer = ask(client, pod, what="exec", argv=list(argv), restarts=restarts)
    if "refused" in answer:
        raise given.refused(status.name, answer)
    return Given(client, watch, pod, status.name, answer["command"], answer["attempt"])


def running(client: Client, watch: Watch) -> Given:
    """The command that the gang runs. Raises EngineError when it runs none."""
    status = watch.status()
    pod = must_be_up(watch, status)
    command = given.running(status)
    return Given(client, watch, pod, status.name, command.number, command.attempt)


def must_be_up(watch: Watch, status: Status) -> Pod:
    """Node 0's pod of a gang that takes commands. Raises EngineError."""
    if status.is_over:
        raise given.is_over(status, "allranks up")
    pod = next((one for one in watch.pods if one.node == 0), None)
    if pod is None or not pod.is_running:
        raise EngineError(f"gang {status.name} is not there yet: {status.reason}; see: allranks status {status.name}")
    if status.attempts and not status.stays:
        raise given.has_its_own(status.name, f"allranks up --engine {status.engine} --name OTHER")
    return pod
