"""The engine runai: gangs as distributed workloads of Run:ai, whose pods are a PyTorchJob's.

The ``runai`` program starts a gang and deletes it; all else is asked of the cluster, and of the program where there is
no kubeconfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from allranks.engines.engine import LogFilter, LogLine
from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes.control import KubernetesEngine
from allranks.engines.kubernetes.kinds import PYTORCHJOB
from allranks.engines.pytorchjob.control import node_of
from allranks.engines.runai import by_program, program
from allranks.errors import EngineError

if TYPE_CHECKING:
    from allranks.engines.engine import Plan
    from allranks.engines.kubernetes.client import Client, Object
    from allranks.engines.kubernetes.cluster import Cluster
    from allranks.node.status import Status


@dataclass(frozen=True)
class RunaiEngine(KubernetesEngine):
    """As its base, with Run:ai between it and the operator."""

    def available(self) -> str:
        return "" if program.path() else super().available() and program.MISSING

    def connect(self) -> Client:
        from allranks.engines.runai.adopted import Adopting

        return Adopting(api.connect())

    def cluster(self) -> Cluster:
        known = super().cluster()
        return replace(known, runai=program.version()) if program.path() else known

    def check(self, plan: Plan) -> Sequence[str]:
        from allranks.engines.runai.submit import check

        return check(self.connect(), plan)

    def create(self, client: Client, plan: Plan) -> Object:
        from allranks.engines.runai.submit import submit

        if why := api.why_not():
            raise EngineError(f"engine runai puts the agent and its secret into the project's namespace itself: {why}")
        return submit(client, plan)

    def remove(self, client: Client, main: Object, namespace: str, timeout: float) -> list[Object]:
        from allranks.engines.runai.submit import delete

        if program.path():
            project = namespace.removeprefix("runai-") if namespace.startswith("runai-") else ""
            delete(str(main["metadata"]["name"]), project)
        return super().remove(client, main, namespace, timeout)

    def status(self, name: str) -> Status:
        return by_program.status(name) if api.why_not() else super().status(name)

    def list(self) -> Sequence[Status]:
        return [] if api.why_not() else super().list()

    def logs(self, name: str, wanted: LogFilter, *, follow: bool) -> Iterator[LogLine | None]:
        from allranks.engines.runai import output

        if api.why_not():
            yield from by_program.logs(name, wanted)
            return
        lines = super().logs(name, wanted, follow=follow)
        namespace = str(self.must_find(name)[1]["metadata"]["namespace"])
        yield from output.kept(lines, namespace, name) if follow else lines

    def cancel(self, name: str, *, reason: str, code: int = 143) -> Status:
        if api.why_not():
            return by_program.cancel(name, reason, code)
        return super().cancel(name, reason=reason, code=code)


ENGINE = RunaiEngine(name="runai", summary="Run:ai, by its command line", kind=PYTORCHJOB, node_of=node_of, head=())
