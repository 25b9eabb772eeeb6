"""A run in a cluster as this process has it: who goes away leaves it running."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allranks.engines.engine import LogFilter
from allranks.node.status import Status

if TYPE_CHECKING:
    from allranks.engines.kubernetes.client import Client, Object
    from allranks.engines.kubernetes.control import KubernetesEngine
    from allranks.engines.kubernetes.watch import Watch


class KubernetesRun:
    """A gang that is watched from here."""

    def __init__(self, engine: KubernetesEngine, client: Client, main: Object) -> None:
        self.name, self.lines = str(main["metadata"]["name"]), LogFilter(since=0)
        self._engine, self._client, self._main = engine, client, main
        self._watching: Watch | None = None

    @property
    def watch(self) -> Watch:
        """Started when it is first asked for: who detaches at once needs none."""
        if self._watching is None:
            self._watching = self._engine.watch(self._client, self._main)
        return self._watching

    def status(self) -> Status:
        """How it stands; a gang whose node 0 has not started in time, or never will, is ended. Raises EngineError."""
        status = self.watch.status()
        if not status.is_over and (why := self.watch.futile):
            from allranks.engines.kubernetes.cancel import give_up

            self.watch.conclude(give_up(self._engine, self._client, self._main, why))
        return self.watch.status()

    def cancel(self, *, reason: str, code: int) -> None:
        self.watch.conclude(self._engine.cancel(self.name, reason=reason, code=code))

    def detach(self) -> None:
        self.watch.close()

    def wait(self, timeout: float) -> bool:
        """Until the engine's object is terminal and no container runs."""
        over = self.watch.until(lambda: self.watch.is_over, timeout)
        if over:
            self.watch.close()
        return over
