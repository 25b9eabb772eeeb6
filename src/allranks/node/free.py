"""Have a lost Kubernetes node's pods given up, so that their engine makes them anew at once (``failure.force_delete``).

A pod on a node without power stays Terminating until the node returns, and most operators wait for it. Its gang may
delete it by force: it is one of the run's own, the cluster has evicted it because its node is lost, and the gang misses
an agent. That agent has ended its ranks by its own lease when it is alive, so no two attempts are alive at once.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Set
from urllib.parse import quote

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts the pod's own token, its certificate authority and its namespace."""
LABEL = "allranks.dev/run"
COUNTED = "batch.kubernetes.io/job-tracking"
"""Finalizer of a Job's pods. One with a podFailurePolicy waits for phase Failed, which nobody sets on a lost node."""
FIRST, LONGEST, SLOWER = 2.0, 30.0, 0.1
"""Seconds between two looks: at first, at most, and how much more for each second without the gang being whole."""
BODIES = {"PATCH": "application/merge-patch+json"}
TIMEOUT = 5.0
LARGEST = 64 * 2**20
LEAVERS = 3
"""So many nodes look once more when they are told to go: an operator may delete all pods of a set when one is lost."""


class Account:
    """Asks the API server of its own cluster as the pod's service account. Blocks; raises OSError, ValueError."""

    def __init__(self, run: str, folder: str = ACCOUNT, env: Mapping[str, str] = os.environ) -> None:
        self.run, self._folder = run, folder
        self._host, self._port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        self._asked: Set[str] = set()

    def free(self) -> List[str]:
        """Give up the run's pods on lost nodes, each once; returns a line for each."""
        namespace = self._read("namespace")
        root = f"/api/v1/namespaces/{quote(namespace)}/pods"
        found = self._ask("GET", f"{root}?labelSelector={quote(f'{LABEL}={self.run}')}&resourceVersion=0")
        lines = []
        for pod in found.get("items") or ():
            about = pod["metadata"]
            if is_lost(pod) and about["uid"] not in self._asked:
                self._asked.add(about["uid"])
                if COUNTED in (about.get("finalizers") or ()):
                    self._ask("PATCH", f"{root}/{quote(about['name'])}/status", {"status": {"phase": "Failed"}})
                only = {"gracePeriodSeconds": 0, "preconditions": {"uid": about["uid"]}}
                self._ask("DELETE", f"{root}/{quote(about['name'])}", only)
                lines.append(f"pod {about['name']} was given up: node {pod['spec'].get('nodeName')} is lost")
        return lines

    def _ask(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        line = self._connect()
        try:
            headers = {
                "Authorization": f"Bearer {self._read('token')}",
                "Content-Type": BODIES.get(method, "application/json"),
            }
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            text = answer.read(LARGEST)
        except http.client.HTTPException as error:
            raise OSError(f"the API server broke the protocol: {error!r}") from error
        finally:
            line.close()
        if answer.status in (404, 409):
            return {}  # somebody else was quicker
        if answer.status >= 400:
            raise OSError(f"the API server refused {method} of pods ({answer.status}): {_message(text)}")
        found: Dict[str, Any] = json.loads(text)
        return found

    def _connect(self) -> http.client.HTTPConnection:
        import ssl  # some megabytes, for the few agents that come here

        trusted = ssl.create_default_context(cafile=os.path.join(self._folder, "ca.crt"))
        return http.client.HTTPSConnection(self._host, int(self._port), timeout=TIMEOUT, context=trusted)

    def _read(self, name: str) -> str:
        with open(os.path.join(self._folder, name), encoding="ascii") as file:
            return file.read().strip()


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


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300].decode(errors="replace")


class Freeing:
    """Looks for lost nodes while ``broken`` says that the gang is not whole here; ``tell`` is given a line for each."""

    def __init__(self, account: Account, node: int, broken: Callable[[], bool], tell: Callable[[str], None]) -> None:
        self._account, self._node, self._broken, self._tell = account, node, broken, tell
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
            lines = await asyncio.get_running_loop().run_in_executor(None, self._account.free)
        except (OSError, ValueError, KeyError, TypeError) as error:
            lines = [f"pods on lost nodes cannot be given up (failure.force_delete): {error}"]
            if lines[0] == self._said:
                return
            self._said = lines[0]
        for line in lines:
            self._tell(line)
