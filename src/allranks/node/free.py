"""Have a lost Kubernetes node's pods given up, so that their engine makes them anew at once (``failure.force_delete``).

A pod on a node without power stays Terminating until the node returns, and most operators wait for it. Its gang may
delete it by force: it is one of the run's own, the cluster has evicted it because its node is lost, and the gang misses
an agent. That agent has ended its ranks by its own lease when it is alive, so no two attempts are alive at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Set
from urllib.parse import quote

if TYPE_CHECKING:
    from allranks.node.account import Account

LABEL = "allranks.dev/run"
COUNTED = "batch.kubernetes.io/job-tracking"
"""Finalizer of a Job's pods. One with a podFailurePolicy waits for phase Failed, which nobody sets on a lost node."""
FIRST, LONGEST, SLOWER = 2.0, 30.0, 0.1
"""Seconds between two looks: at first, at most, and how much more for each second without the gang being whole."""
LEAVERS = 3
"""So many nodes look once more when they are told to go: an operator may delete all pods of a set when one is lost."""


class LostPods:
    """The run's pods that lost Kubernetes nodes hold."""

    def __init__(self, account: Account, run: str) -> None:
        self._account, self._run = account, run
        self._asked: Set[str] = set()

    def free(self) -> List[str]:
        """Give them up, each once; returns a line for each. Blocks; raises OSError, ValueError."""
        root, ask = self._account.of("pods"), self._account.ask
        found = ask("GET", f"{root}?labelSelector={quote(f'{LABEL}={self._run}')}&resourceVersion=0")
        lines = []
        for pod in found.get("items") or ():
            about = pod["metadata"]
            if is_lost(pod) and about["uid"] not in self._asked:
                self._asked.add(about["uid"])
                if COUNTED in (about.get("finalizers") or ()):
                    ask("PATCH", f"{root}/{quote(about['name'])}/status", {"status": {"phase": "Failed"}})
                only = {"gracePeriodSeconds": 0, "preconditions": {"uid": about["uid"]}}
                ask("DELETE", f"{root}/{quote(about['name'])}", only)
                lines.append(f"pod {about['name']} was given up: node {pod['spec'].get('nodeName')} is lost")
        return lines


def is_lost(pod: Mapping[str, Any]) -> bool:
    """Whether the cluster has given it up with its node.

    The node's controller says Ready False without a reason, which a kubelet that is alive always gives.
    """
    conditions = {one.get("type"): one for one in (pod.get("status") or {}).get("conditions") or ()}
    evicted, ready = conditions.get("DisruptionTarget", {}), conditions.get("Ready", {})
    return bool(
        pod["metadata"].get("deletionTimestamp")
        and (evicted.get("status"), evicted.get("reason")) == ("True", "DeletionByTaintManager")
        and ready.get("status") == "False" and not ready.get("reason")
    )  # fmt: skip


class Freeing:
    """Looks for lost nodes while ``broken`` says that the gang is not whole here; ``tell`` is given a line for each."""

    def __init__(self, lost: LostPods, node: int, broken: Callable[[], bool], tell: Callable[[str], None]) -> None:
        self._lost, self._node, self._broken, self._tell = lost, node, broken, tell
        self._said = ""

    async def run(self) -> None:
        """For ever. Node 0 is the first to look, the others follow a second apart: mostly one of them is enough."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            alone = loop.time() - since
            await asyncio.sleep(min(LONGEST, FIRST + SLOWER * alone))
            if not self._broken():
                since = loop.time()
            elif loop.time() - since >= self._node:
                await self.look()

    async def leave(self) -> None:
        """Look once more before this node goes, since nobody may be left to do it then."""
        if self._node < LEAVERS:
            await self.look()

    async def look(self) -> None:
        """Look once; what keeps it from that is said once."""
        try:
            lines = await asyncio.get_running_loop().run_in_executor(None, self._lost.free)
        except (OSError, ValueError, KeyError, TypeError) as error:
            lines = [f"pods on lost nodes cannot be given up (failure.force_delete): {error}"]
            if lines[0] == self._said:
                return
            self._said = lines[0]
        for line in lines:
            self._tell(line)
