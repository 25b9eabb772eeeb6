"""A run is ended: by its coordinator where that can be asked, else by deleting what the engine made.

Either way no pod runs afterwards. A coordinator ends the ranks as ``failure.grace`` says and leaves its verdict in all
pods, so the engine's object stays and can still be asked why; without one there is nothing to say, and it goes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import delivery, exec, kept
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import kind_of
from allranks.engines.kubernetes.look import glance, look
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.reasons import force_delete
from allranks.engines.kubernetes.refusals import Missing
from allranks.engines.kubernetes.state import Sight, compose
from allranks.errors import EngineError
from allranks.node.cause import Cause, utc
from allranks.node.status import Status
from allranks.node.verdict import EXIT_NEVER_COMPLETE

if TYPE_CHECKING:
    from allranks.engines.kubernetes.control import KubernetesEngine

SLACK = 25.0
"""Seconds that a gang may take beyond its pods' grace to be gone."""
POLL = 0.3


@dataclass(frozen=True)
class End:
    """What is written down of a run that somebody ends from here; ``kind`` is a cause's."""

    reason: str
    code: int
    kind: str = "cancelled"

    def say(self, status: Status) -> None:
        """Have the status tell it."""
        status.causes = [*status.causes, Cause(status.attempt, self.kind, utc(), self.reason, exit=self.code)]
        status.end("cancelled" if self.kind == "cancelled" else "failed", self.reason, self.code)
        status.ended = utc()


def cancel(engine: KubernetesEngine, client: Client, main: Object, *, reason: str, code: int) -> Status:
    """End it and wait until nothing of it runs; idempotent. Raises EngineError, naming what does not go."""
    end = End(reason, code)
    sight = look(client, engine.name, main, engine.node_of)
    if ending(main) and not _running(sight):
        return engine.composed(client, sight)
    asked = ending(main) or _ask(client, sight, reason, code)
    if asked and _wait_for_end(engine, client, sight, _patience(sight)):
        status = engine.composed(client, glance(client, engine.name, _again(client, main), engine.node_of))
        if ending(main) or status.phase == "cancelled":
            return status
        end.say(status)
        return _remembered(client, sight, status)
    return _delete(engine, client, sight, end)


def give_up(engine: KubernetesEngine, client: Client, main: Object, reason: str) -> Status:
    """Delete a run whose node 0 does not start: nobody in it could end it. Raises EngineError, as ``cancel``."""
    try:
        sight = glance(client, engine.name, _again(client, main), engine.node_of)
        return _delete(engine, client, sight, End(reason, EXIT_NEVER_COMPLETE, "start_timeout"))
    except EngineError as error:
        raise EngineError(f"{reason}; it could not be ended: {error}") from error


def ask(client: Client, pod: Pod, **request: Any) -> dict[str, Any]:
    """Put a request to the coordinator in that pod. Raises EngineError when it does not answer."""
    done = exec.run(client, pod.name, pod.container, pod.agent("ask", json.dumps(request)), pod.namespace)
    if done.code:
        said = (done.errors.strip().splitlines() or [f"it ended with {done.code}"])[-1]
        raise EngineError(f"the coordinator in pod {pod.name} cannot be asked: {said}")
    answered: dict[str, Any] = json.loads(done.output)
    return answered


def _ask(client: Client, sight: Sight, reason: str, code: int) -> bool:
    pod = sight.pods.get(0)
    if pod is None or not pod.is_running or pod.is_going:
        return False
    try:
        ask(client, pod, what="cancel", reason=reason, code=code)
    except EngineError:
        return False  # then it goes the hard way
    return True


def _running(sight: Sight) -> list[Pod]:
    return [pod for pod in sight.pods.values() if pod.is_running]


def _patience(sight: Sight) -> float:
    """Seconds that its pods may take to be gone; an init container too may use up all of their grace."""
    graces = (int(pod.spec.get("terminationGracePeriodSeconds") or 30) for pod in sight.pods.values())
    return max(graces, default=0) + SLACK


def _again(client: Client, main: Object) -> Object:
    return client.get(kind_of(main), str(main["metadata"]["name"]), str(main["metadata"]["namespace"]))


def _wait_for_end(engine: KubernetesEngine, client: Client, sight: Sight, seconds: float) -> bool:
    """Whether the engine's object is terminal and no container runs, in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            main = _again(client, sight.main)
        except Missing:
            return False
        began = time.monotonic()
        now = glance(client, engine.name, main, engine.node_of)
        engine.composed(client, now)  # some operators delete the pods, and with them the record that they leave
        if ending(main) and not _running(now):
            return True
        time.sleep(max(POLL, time.monotonic() - began))  # a large gang's pods are megabytes
    return False


def _delete(engine: KubernetesEngine, client: Client, sight: Sight, end: End) -> Status:
    status = compose(sight, kept.of(client.access.context, sight.main))
    left = [Pod(0, raw) for raw in engine.remove(client, sight.main, sight.namespace, _patience(sight))]
    status.conditions = []
    if not status.is_over:  # a sidecar may outlive the gang
        end.say(status)
    _remembered(client, sight, status)
    _must_not_run(sight, [pod for pod in left if not pod.is_gone])
    return status


def _must_not_run(sight: Sight, left: Sequence[Pod]) -> None:
    """Of a deleted run nothing is left but what the cluster has yet to clear away. Raises EngineError."""
    if stuck := [pod for pod in left if pod.is_going]:
        ways = "\n".join(force_delete(pod) for pod in stuck[:10])
        hosts = ", ".join(sorted({pod.host for pod in stuck}))
        raise EngineError(f"run {sight.name}: {len(stuck)} pods do not go; their nodes ({hosts}) may be lost; give "
                          f"them up with:\n{ways}")  # fmt: skip
    if left:
        pods = "1 pod" if len(left) == 1 else f"{len(left)} pods"
        raise EngineError(f"run {sight.name}: its {sight.main['kind']} is deleted, but the cluster has yet to tell "
                          f"{pods} to go; does kube-controller-manager run? End them by hand: kubectl "
                          f"-n {sight.namespace} delete pod -l {delivery.RUN}={sight.name}")  # fmt: skip


def _remembered(client: Client, sight: Sight, status: Status) -> Status:
    """What nobody in the cluster will be able to tell."""
    kept.remember(client.access.context, sight.main, status)
    return status
