"""Why a pod is not running, in one line: the scheduler's, the kubelet's or the operator's own reason.

Pure: told the API server's objects. ``Events`` is what else was said of the run's objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allranks.engines.kubernetes.pods import Object, Pod, moment, now
from allranks.node.free import COUNTED

LONGEST = 400
STUCK = 10.0
"""Seconds beyond its grace after which a pod that is still there is stuck."""
CREATING = ("ContainerCreating", "PodInitializing")
PULL = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")


class Events:
    """Warnings about the objects of one run, the newest for each object."""

    def __init__(self, events: Sequence[Object], run: str) -> None:
        self._of: dict[tuple[str, str], Object] = {}
        for event in sorted(events, key=_when):
            about = event.get("involvedObject") or {}
            name = str(about.get("name", ""))
            if name == run or name.startswith(f"{run}-"):
                self._of[str(about.get("kind", "")), name] = event

    def of_pod(self, name: str) -> Object:
        """What was said last of a pod."""
        return self._of.get(("Pod", name), {})

    def of_owners(self) -> str:
        """What keeps an operator from making pods: of the run's other objects, what was said last."""
        said = [event for (kind, _), event in self._of.items() if kind != "Pod"]
        return told(max(said, key=_when)) if said else ""


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def told(event: Object) -> str:
    """An event in a line: quota, webhook, missing volume."""
    message = str(event.get("message", ""))
    quota = re.search(r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)", message)
    if quota:
        name, asked, used, limit = (part.rstrip(",") for part in quota.groups())
        return f"quota {name} does not allow it: requested {asked}, used {used}, allowed {limit}"
    if strict := re.search(r'violates PodSecurity "([^":]+)[^"]*": (.*)', message):
        wanted = re.sub(r'[^,()]+ \([a-z ]+(?:"[^"]+"(?:, )?)+ must ([^()]*)\)', r" must \1", strict[2]).strip()
        return short(f"its namespace's Pod Security level {strict[1]} lets in no such pods: {wanted}; set that in the "
                     "spec's 'container' and 'pod'")  # fmt: skip
    if refused := re.search(r'^Error creating: pods "[^"]*" is forbidden: (.*)', message, re.DOTALL):
        return short(f"its pods are refused: {refused[1]}")  # their names are new each time
    return short(f"{event.get('reason', '')}: {message}".strip(": "))


def why_never(pods: Iterable[Pod], events: Events) -> str:
    """Why no rank of these pods ever ran: how one ended says more than that another is taken away for it."""
    found = sorted(pods, key=lambda pod: pod.is_going)
    told = [*map(_ended, found), *(why_waiting(pod, events) for pod in found)]
    return short(next(filter(None, told), ""))


def lack(pod: Pod) -> str:
    """What its image has not and the agent needs: no other container of it would start; empty for any other trouble."""
    states = (pod.state.get("waiting"), pod.state.get("terminated"), pod.last_state.get("terminated"))
    return next(filter(None, (_no_python(str(one.get("message", "")), pod) for one in states if one)), "")


def why_waiting(pod: Pod, events: Events) -> str:
    """Why this pod's ranks do not run; empty when its container does."""
    for reason in (_leaving, _unscheduled, _initialising, _waiting, _ended):
        found = reason(pod)
        if found == _CREATING:
            found = _creating(pod, events)
        if found:
            return short(found)
    return ""


_CREATING = "its container is being created"


def _creating(pod: Pod, events: Events) -> str:
    said = events.of_pod(pod.name)
    message = str(said.get("message", ""))
    if not said or "failed to sync" in message:  # a kubelet has yet to hear of what the pod mounts, and asks again
        return f"{_CREATING} on {pod.host}"
    missing = re.search(r'(configmap|secret|persistentvolumeclaim) "([^"]+)" not found', message, re.IGNORECASE)
    if missing:
        return f"{missing[1].lower()} {missing[2]} is not there, and a volume needs it"
    return _no_python(message, pod) or f"{said.get('reason')}: {message}"


# One question each: a reason, or an empty string


def _leaving(pod: Pod) -> str:
    metadata = pod.raw["metadata"]
    if not pod.is_going:
        return ""
    disrupted = pod.condition("DisruptionTarget")
    evicted = disrupted.get("reason") == "DeletionByTaintManager" or pod.status.get("reason") == "NodeLost"
    if now() > moment(str(metadata["deletionTimestamp"])) + STUCK:
        why = f"node {pod.host} is lost" if evicted else f"node {pod.host} does not answer"
        return f"it stays Terminating because {why}; free it with: {force_delete(pod)}"
    return f"evicted from {pod.host}, which is lost" if evicted else "it is being deleted"


def force_delete(pod: Pod) -> str:
    """The command that gives up a pod on a lost node."""
    kubectl = f"kubectl -n {pod.raw['metadata'].get('namespace', 'default')}"
    delete = f"{kubectl} delete pod {pod.name} --grace-period=0 --force"
    if COUNTED not in (pod.raw["metadata"].get("finalizers") or ()):
        return delete
    failed = """--subresource=status --type=merge -p '{"status":{"phase":"Failed"}}'"""
    return f"{kubectl} patch pod {pod.name} {failed} && {delete} --ignore-not-found"


def _unscheduled(pod: Pod) -> str:
    scheduled = pod.condition("PodScheduled")
    if scheduled.get("status") == "True" or pod.host:
        return ""
    if not scheduled:
        by = pod.spec.get("schedulerName", "default-scheduler")
        return f"no scheduler has looked at it yet ({by})"
    if scheduled.get("reason") == "SchedulingGated":
        gates = ", ".join(str(gate.get("name")) for gate in pod.spec.get("schedulingGates") or ())
        return f"it may not be scheduled yet: gate {gates}"
    message = str(scheduled.get("message", "")).partition(" preemption: ")[0]
    claim = re.search(r'persistentvolumeclaim "([^"]+)" not found', message)
    if claim:
        return f"there is no PersistentVolumeClaim {claim[1]} in its namespace"
    return f"unschedulable: {message.rstrip('.')}"


def _initialising(pod: Pod) -> str:
    beside = {one["name"] for one in pod.spec.get("initContainers") or () if one.get("restartPolicy") == "Always"}
    for one in pod.status.get("initContainerStatuses") or ():
        state = one.get("state") or {}
        if one["name"] in beside and one.get("started"):
            continue  # a sidecar: nothing waits for its end
        if "running" in state:
            return f"init container {one['name']} is running"
        ended = state.get("terminated") or {}
        if ended.get("exitCode"):
            return f"init container {one['name']} ended with {ended['exitCode']}: {ended.get('message', '')}".strip(
                ": "
            )
        waiting = state.get("waiting") or {}
        if waiting and waiting.get("reason") not in CREATING:
            return f"init container {one['name']}: {_told(pod, waiting, str(one.get('image', '')))}"
    return ""


def _waiting(pod: Pod) -> str:
    waiting = pod.state.get("waiting")
    if waiting is None:
        unknown = pod.phase == "Pending" and not pod.state
        return _CREATING if unknown else ""
    if waiting.get("reason") in CREATING:
        return _CREATING
    if waiting.get("reason") == "CrashLoopBackOff":
        return f"its container ended again and again: {_how_ended(pod.last_state.get('terminated') or {}, pod)}"
    return _told(pod, waiting, str(pod.ranks.get("image", "")))


def _told(pod: Pod, waiting: Mapping[str, Any], image: str) -> str:
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in PULL:
        return f"image {image} cannot be pulled: {_innermost(message) or reason}"
    missing = re.search(r'(configmap|secret) "([^"]+)" not found', message)
    if missing:
        return f"there is no {missing[1]} {missing[2]} in its namespace, and the ranks' variables need it"
    return _no_python(message, pod) or f"{reason}: {message}".strip(": ")


def _ended(pod: Pod) -> str:
    ended = pod.state.get("terminated") or {}
    if ended:
        return "" if ended.get("exitCode") == 0 else _how_ended(ended, pod)
    if pod.phase == "Failed":
        return f"{pod.status.get('reason', 'Failed')}: {pod.status.get('message', '')}".strip(": ")
    return ""


def _how_ended(ended: Mapping[str, Any], pod: Pod) -> str:
    message = str(ended.get("message", ""))
    if "executable file not found" in message or "no such file or directory" in message:
        return _no_python(message, pod) or message
    reason = str(ended.get("reason", ""))
    if reason == "OOMKilled":
        limit = (pod.ranks.get("resources", {}).get("limits") or {}).get("memory")
        allowed = f"its limit of {limit}" if limit else "its pod or host has"
        return f"its container was killed for using more memory than {allowed} (OOMKilled)"
    said = "" if message.startswith("{") else message
    return f"its container ended with {ended.get('exitCode')}" + (f": {said or reason}" if said or reason else "")


def _no_python(message: str, pod: Pod) -> str:
    found = re.search(r'exec: "?([^":]+)"?: (stat [^:]+: )?(executable file not found|no such file)', message)
    if not found:
        return ""
    image = pod.ranks.get("image", "")
    if "python" in found[1]:
        return f"image {image} has no {found[1]}, which allranks' agent needs (3.8 or newer): take one that has it"
    return f"image {image} has no {found[1]}"


def _innermost(message: str) -> str:
    """Of nested errors the last part that says something."""
    parts = [part.strip(' "') for part in re.split(r": (?=[a-zA-Z\"])", message) if part.strip(' "')]
    return ": ".join(parts[-2:])


def short(text: str) -> str:
    """One line of a bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
