"""How a run stands, put together from what the API server tells and what the run's own coordinator does.

Pure. The coordinator's record is the truth about ranks, attempts and causes; pods tell why nodes are not there yet; the
engine's object tells the end where nobody is left to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from allranks.engines.kubernetes import conditions, delivery
from allranks.engines.kubernetes.pods import Object, Pod, moment, now
from allranks.engines.kubernetes.reasons import Events, short, why_never, why_waiting
from allranks.node.cause import Cause
from allranks.node.ledger import ATTEMPTS_OF_A_SET
from allranks.node.status import NodeStatus, RankStatus, Status
from allranks.node.verdict import EXIT_NEVER_COMPLETE

SLOW = 5.0
"""Seconds after which an operator that has made no pods is worth a word."""
NOT_YET = "its agent has not reported yet"


@dataclass(frozen=True)
class Sight:
    """What was seen of a run at one moment. ``queue`` is why its pods are held back, if they are.

    ``speakers`` are its pods that are no node. ``followed`` says that somebody watches it, and ends it in time.
    """

    engine: str
    main: Object
    pods: Mapping[int, Pod] = field(default_factory=dict)
    events: Events = field(default_factory=lambda: Events((), ""))
    queue: str = ""
    record: Status | None = None
    notes: tuple[str, ...] = ()
    speakers: Sequence[Pod] = ()
    followed: bool = False

    @property
    def name(self) -> str:
        return str(self.main["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.main["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.main["metadata"]["uid"])

    @property
    def lingers(self) -> str:
        """Which containers keep a gang whose ranks' containers have all ended, a while ago; empty where none do."""
        if conditions.ending(self.main) or not all("terminated" in pod.state for pod in self.pods.values()):
            return ""
        staying = [pod for pod in self.pods.values() if pod.lingering]
        if not staying:
            return ""
        first, kind = staying[0], self.main["kind"]
        more = f" and those of {len(staying) - 1} more" if len(staying) > 1 else ""
        return (f"the ranks have ended, but container {', '.join(first.lingering)} of pod {first.name}{more} has not, "
                f"which keeps {kind} {self.name} from ending; end it with: allranks cancel {self.name}")  # fmt: skip

    @property
    def is_whole(self) -> bool:
        """Whether every node's container runs, so that nothing need be explained."""
        return len(self.pods) == size(self.main)[0] and all(pod.is_running for pod in self.pods.values())


def size(main: Object) -> tuple[int, int, int]:
    """Nodes, ranks of each, and how often the gang may start again, as the plan has noted them on its object."""
    noted = main["metadata"].get("annotations") or {}
    nodes, _, ranks = str(noted.get(delivery.SIZE, "0x0")).partition("x")
    return int(nodes), int(ranks), int(noted.get(delivery.RESTARTS, 0))


def start_timeout(main: Object) -> float:
    """``failure.start_timeout`` in seconds; infinite where an older version has not noted it."""
    return float((main["metadata"].get("annotations") or {}).get(delivery.START, "inf"))


def waits_to_start(sight: Sight) -> bool:
    """Whether node 0's agent, which counts from then on, has yet to start, and no queue holds the gang back."""
    if sight.record is not None or conditions.ending(sight.main) or conditions.is_suspended(sight.main):
        return False
    pod = sight.pods.get(0)
    return pod is None or not (pod.is_running or pod.is_queued)


def _overdue(sight: Sight, status: Status) -> str:
    """What to say of a gang that nobody follows and that should have started by now."""
    allowed, pod = start_timeout(sight.main), sight.pods.get(0)
    since = max(moment(str(sight.main["metadata"].get("creationTimestamp", ""))), conditions.let_in(sight.main))
    if status.attempts or status.causes:
        since = max(since, moment(pod.created)) if pod else math.inf
    if sight.followed or now() - since < allowed or not waits_to_start(sight):
        return ""
    return f"longer than failure.start_timeout ({allowed:g} s); end it with: allranks cancel {sight.name}"


def compose(sight: Sight, earlier: Status | None = None) -> Status:
    """The run's status. ``earlier`` is what was known of this very run before."""
    ended = conditions.ending(sight.main)
    record = sight.record or _left(sight)
    if record is not None and (record.is_over or not ended):
        known = record if record.nodes else earlier
        status = replace(record, causes=_causes(record, earlier), nodes=_nodes(sight, known))
        status.reason = _reason_with_pods(status)
    elif ended:
        status = replace(earlier or _blank(sight), nodes=_nodes(sight, earlier))
        if not status.is_over:
            _end(status, sight, ended)
    else:
        status = _gathering(sight, earlier)
    if status.is_over:
        _tell_eviction(status, sight)
        _nobody_runs(status)
        status.notes = [*status.notes, *filter(None, [sight.lingers])]
    status.conditions = conditions.shown(sight.main)
    status.notes = [*status.notes, *(note for note in sight.notes if note not in status.notes)]
    return status


def _tell_eviction(status: Status, sight: Sight) -> None:
    """Why the last cause's pod was taken away: its agent knew of a signal only, and kubelet says what for."""
    last = status.causes[-1] if status.causes else None
    pod = sight.pods.get(last.node) if last and last.node is not None else None
    if not last or not pod or pod.status.get("reason") != "Evicted":
        return
    why = short(f"Evicted: {pod.status.get('message', '')}")
    if why not in last.message:
        status.causes = [*status.causes[:-1], replace(last, message=f"{last.message}: {why}")]
    if why not in status.reason:
        status.reason = f"{status.reason}: {why}"


def _end(status: Status, sight: Sight, ended: conditions.Ending) -> None:
    """Nobody left a record: what the object says, and what its pods do where no rank ever ran."""
    code = 0 if ended.phase == "succeeded" else 1
    reason = ended.reason
    if code and not (status.attempts or status.causes):
        code = EXIT_NEVER_COMPLETE
        why = why_never(sight.pods.values(), sight.events)
        reason = f"no rank ever ran: {'; '.join(filter(None, (why, ended.reason)))}"
    status.end(ended.phase, reason, code)
    status.ended = ended.at


def listed(engine: str, main: Object, pods: Mapping[int, Pod] | None = None) -> Status:
    """What the engine's object and its pods, where they are known, tell of a run; its coordinator is not asked.

    An operator counts a pod as active that has not found a machine yet, so what pods do is told by themselves.
    """
    sight = Sight(engine, main, pods or {})
    status = _blank(sight)
    ended = conditions.ending(main)
    if ended:
        status.end(ended.phase, ended.reason, 0 if ended.phase == "succeeded" else 1)
        status.ended = ended.at
    elif conditions.is_suspended(main):
        status.reason = "suspended"
    elif pods is not None and not sight.is_whole:
        status = _gathering(sight, None)
    else:
        status.phase = "running" if pods is not None or _has_active(main) else "pending"
    nodes, ranks, _ = size(main)
    status.nodes = [_node(sight, node, None, ranks) for node in range(nodes)]
    status.conditions = conditions.shown(main)
    return status


def _has_active(main: Object) -> bool:
    """Whether the operator counts pods that run: each has its own place for that."""
    status = main.get("status") or {}
    if status.get("active") or any(one.get("active") for one in status.get("replicatedJobsStatus") or ()):
        return True
    if any(one.get("active") for one in (status.get("replicaStatuses") or {}).values()):
        return True
    return any(one.get("active") for one in status.get("jobsStatus") or ())


def _blank(sight: Sight) -> Status:
    nodes, ranks, restarts = size(sight.main)
    started = str(sight.main["metadata"].get("creationTimestamp", ""))
    return Status(
        sight.name, sight.engine, restarts={"used": 0, "allowed": restarts}, world_size=nodes * ranks, started=started
    )


def _left(sight: Sight) -> Status | None:
    """The verdict that containers left behind; node 0's word first."""
    for node in sorted(sight.pods):
        for record in sight.pods[node].left():
            return record
    return None


def _causes(record: Status, earlier: Status | None) -> list[Cause]:
    """A coordinator that lost its pod knows nothing of the attempts before; whoever watched does."""
    if earlier is None:
        return record.causes
    told = [cause for cause in record.causes if not _is_told_already(cause, earlier)]
    known = {cause.attempt for cause in record.causes}
    before = [cause for cause in earlier.causes if cause.attempt not in known]
    return sorted([*before, *told], key=lambda cause: cause.attempt)


def _is_told_already(cause: Cause, earlier: Status) -> bool:
    """That all pods were made anew follows from the loss of one, where that was seen before the coordinator went."""
    if cause.kind != "node_lost" or (cause.attempt + 1) % ATTEMPTS_OF_A_SET:
        return False
    if cause.attempt in {one.attempt for one in earlier.causes}:
        return False
    return earlier.attempt >= cause.attempt or any(one.attempt == earlier.attempt for one in earlier.causes)


# Nodes


def _nodes(sight: Sight, record: Status | None) -> list[NodeStatus]:
    nodes, ranks, _ = size(sight.main)
    known = {one.node: one for one in record.nodes} if record else {}
    return [_node(sight, node, known.get(node), ranks) for node in range(nodes)]


def _node(sight: Sight, node: int, known: NodeStatus | None, ranks: int) -> NodeStatus:
    pod = sight.pods.get(node)
    made = known or NodeStatus(node, f"{sight.name}-{node}", ranks=_ranks(node, ranks))
    if pod is None:
        return replace(made, reason=made.reason or "its pod is not there") if sight.pods else made
    phase, reason = _of_pod(pod, made, sight.events)
    return replace(made, name=pod.name, address=pod.address or made.address, phase=phase, reason=reason)


def _nobody_runs(status: Status) -> None:
    """A run that is over has its causes; of its pods only those are worth a word that do not go."""
    for node in status.nodes:
        node.phase, node.reason = "ended", node.reason if "Terminating" in node.reason else ""
        for rank in node.ranks:
            rank.state, rank.rss, rank.rate = "ended", None, None


def _ranks(node: int, ranks: int) -> list[RankStatus]:
    return [RankStatus(node * ranks + local, local) for local in range(ranks)]


def _of_pod(pod: Pod, known: NodeStatus, events: Events) -> tuple[str, str]:
    """A node that its coordinator knows is told by it, unless the pod says more."""
    why = why_waiting(pod, events)
    if pod.phase == "Succeeded":
        return "succeeded", ""
    if pod.phase == "Failed":
        return "failed", why
    if pod.is_running and not pod.is_going:
        return (known.phase, known.reason) if known.phase != "pending" else ("starting", known.reason or NOT_YET)
    return known.phase if pod.is_going else "pending", why


# A gang that is not complete


def _gathering(sight: Sight, earlier: Status | None) -> Status:
    status = replace(earlier, reason="") if earlier and not earlier.is_over else _blank(sight)
    status.nodes = _nodes(sight, None)
    began = bool(status.attempts or status.causes)
    some = any(pod.is_running for pod in sight.pods.values())
    status.phase = "restarting" if began else "starting" if some else "pending"
    why = sight.queue or _why_no_pods(sight) or _most_common(status)
    status.reason = "; ".join(filter(None, (why, _overdue(sight, status))))
    return status


def _why_no_pods(sight: Sight) -> str:
    if sight.pods:
        return ""
    said = sight.events.of_owners()
    if said:
        return said
    kind, age = sight.main["kind"], now() - moment(str(sight.main["metadata"].get("creationTimestamp", "")))
    slow = f" for {age:.0f} s: does its operator run?" if age > SLOW else " yet"
    return f"nobody has made pods for its {kind}{slow}"


def _most_common(status: Status) -> str:
    """``2 of 4 nodes there; digits-w-0-1: unschedulable: ...`` for the reason that most of the missing have."""
    missing = [node for node in status.nodes if node.phase == "pending"]
    reasons = Counter(node.reason for node in missing if node.reason)
    there = f"{len(status.nodes) - len(missing)} of {len(status.nodes)} nodes there"
    if not reasons:
        waiting = next((node for node in status.nodes if node.reason), None)
        return f"{there}; {waiting.name}: {waiting.reason}" if waiting else there
    reason, count = reasons.most_common(1)[0]
    first = next(node.name for node in missing if node.reason == reason)
    others = f" and {count - 1} more" if count > 1 else ""
    return f"{there}; {first}{others}: {reason}"


def _reason_with_pods(status: Status) -> str:
    """The coordinator knows who is missing, the pods know why."""
    if status.phase not in ("pending", "starting", "restarting"):
        return status.reason
    why = next((node for node in status.nodes if node.phase == "pending" and node.reason), None)
    if why is None or why.reason in status.reason:
        return status.reason
    return "; ".join(filter(None, (status.reason, f"{why.name}: {why.reason}")))
