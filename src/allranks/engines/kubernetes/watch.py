"""A run seen again and again by a thread, for those who follow it: ``status`` is then no call at all.

Two calls a second whatever the gang's size, and one command in node 0's container that prints the record whenever it
changes. An API server that does not answer for a while disturbs nobody: what was seen last is shown, with a note.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from allranks.engines.kubernetes import kept
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.exec import Lines
from allranks.engines.kubernetes.kinds import kind_of
from allranks.engines.kubernetes.look import glance
from allranks.engines.kubernetes.pods import NodeOf, Pod, read_record
from allranks.engines.kubernetes.reasons import lack
from allranks.engines.kubernetes.refusals import Missing
from allranks.engines.kubernetes.state import Sight, compose, start_timeout, waits_to_start
from allranks.engines.silence import Silence
from allranks.errors import EngineError
from allranks.node.status import Status

INTERVAL = 1.0
SAID_AFTER, SLOW = 4.0, 15.0
"""Seconds of silence that are worth a word: where there was an error, and where an answer only takes its time."""
ENDS_ITSELF = 10.0
"""Seconds that an operator has to end a run none of whose containers can start; some try for ever."""


_OPEN: dict[str, Watch] = {}
"""By the uid of the run's object: who follows its lines and who asks how it stands must see the same."""


def watch(client: Client, engine: str, main: Object, node_of: NodeOf) -> Watch:
    """Watch a run, together with whoever does so already in this process; each closes it once."""
    uid = str(main["metadata"]["uid"])
    if uid not in _OPEN:
        _OPEN[uid] = Watch(client, engine, main, node_of)
    _OPEN[uid].users += 1
    return _OPEN[uid]


class Watch(threading.Thread):
    """Sees one run until all of its ``users`` have closed it."""

    def __init__(self, client: Client, engine: str, main: Object, node_of: NodeOf) -> None:
        super().__init__(daemon=True)
        self._client, self._engine, self._node_of = client, engine, node_of
        self._sight = Sight(engine, main)
        self._earlier = kept.of(client.access.context, main)
        self._lines: Lines | None = None
        self._of = ""
        self._line = ""
        self._record: Status | None = None
        self._silence = Silence(self._sight.name, SAID_AFTER, SLOW)
        self._looked = time.monotonic()
        self._waited = self._lacking = 0.0
        self._lack = ""
        self._ended: Status | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self.gone = False
        self.users = 0
        self._look()
        self.start()

    @property
    def pods(self) -> list[Pod]:
        return list(self._sight.pods.values())

    @property
    def speakers(self) -> Sequence[Pod]:
        return self._sight.speakers

    @property
    def is_over(self) -> bool:
        """Whether no rank runs any more, by the cluster's own word or where only a sidecar keeps it from that."""
        if self.gone:
            return True
        if self._sight.lingers:
            return self.status().is_over
        return bool(ending(self._sight.main)) and not any(pod.is_running for pod in self.pods)

    def status(self) -> Status:
        """How it stands by the newest look. Raises EngineError when there was none for PATIENCE seconds."""
        if self._ended is not None:
            return self._ended
        outages, silence = self.outages, self._silence
        if silence.is_too_long:
            name = self._sight.name
            raise EngineError(f"{silence.trouble or 'the API server does not answer'}; run {name} was not seen for "
                              f"{silence.seconds:.0f} s, and may go on; see: allranks logs -f {name}")  # fmt: skip
        with self._lock:
            status = self._compose()
        return replace(status, notes=[*status.notes, *outages])

    @property
    def futile(self) -> str:
        """Why waiting for node 0 has no use any more; empty while it has. Queues and outages are not counted."""
        if self._lack and self._waited - self._lacking > ENDS_ITSELF:
            return f"no rank ever ran: {self._lack}"
        allowed = start_timeout(self._sight.main)
        return f"node 0 did not start within {allowed:g} s: {self.status().reason}" if self._waited > allowed else ""

    def conclude(self, ended: Status) -> None:
        """The run was ended from here: that is how it ended, whatever is seen of it afterwards."""
        self._ended = ended

    def _count(self) -> None:
        """The time since the look before this one, as far as it was spent on waiting for node 0 to start."""
        before, self._looked = self._looked, time.monotonic()
        if self._usable() is not None:
            self._waited, self._lack = 0.0, ""
        elif waits_to_start(self._sight):
            self._waited += self._looked - before
            if not self._lack:
                self._lack, self._lacking = next(filter(None, map(lack, self.pods)), ""), self._waited

    @property
    def outages(self) -> Sequence[str]:
        """What there is to say of times when the cluster did not answer."""
        return self._silence.notes

    def until(self, true: Callable[[], object], timeout: float) -> bool:
        """Wait until something is true, at most ``timeout`` seconds: it is tried whenever more is seen of the run."""
        with self._news:
            return bool(self._news.wait_for(true, timeout))

    def await_record(self, seconds: float = 10.0) -> None:
        """Wait until the coordinator has told its record, if there is one that could."""
        lines = self._lines
        self.until(lambda: lines is None or lines.newest or not lines.is_alive(), seconds)

    def close(self) -> None:
        """Stop looking, where nobody else wants to see."""
        self.users -= 1
        if self.users > 0:
            return
        _OPEN.pop(self._sight.uid, None)
        self._closing.set()
        if self._lines is not None:
            self._lines.close()

    def run(self) -> None:
        """Look every INTERVAL."""
        while not self._closing.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        old = self._sight
        try:
            fresh = self._client.get(kind_of(old.main), old.name, old.namespace)
            self.gone = fresh["metadata"]["uid"] != self._sight.uid
            if not self.gone:
                sight = glance(self._client, self._engine, fresh, self._node_of)
                with self._lock:
                    self._sight = sight
            self._listen()
            self._count()
            self._silence.heard()
        except Missing:
            self.gone = True
            self._silence.heard()
        except EngineError as error:
            self._looked = time.monotonic()
            self._silence.goes_on(error)  # a refusal too: an API server that has just started knows no rights yet
        self._tell()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _listen(self) -> None:
        """Have node 0's container print its record, and again from another one when that has ended."""
        pod = self._sight.pods.get(0)
        if pod is None or not pod.is_running:
            return
        if self._lines is None or not self._lines.is_alive() or self._of != pod.uid:
            if self._lines is not None:
                self._lines.close()
            if self._of != pod.uid:
                with self._lock:
                    self._of, self._lines, self._line, self._record = pod.uid, None, "", None
            argv = pod.agent("record", "--follow")
            self._lines = Lines(self._client, pod.name, pod.container, argv, pod.namespace, self._tell)

    def _compose(self) -> Status:
        line = self._lines.newest if self._lines else ""
        if line and line != self._line:  # none yet: of the same pod what it told before holds
            self._line, self._record = line, read_record(line)
        status = compose(replace(self._sight, record=self._usable(), followed=True), self._earlier)
        if self.gone and not status.is_over:
            status.end("cancelled", f"its {self._sight.main['kind']} was deleted from the cluster", 143)
        if self._earlier is None or status.to_json() != self._earlier.to_json():
            kept.remember(self._client.access.context, self._sight.main, status)
            self._earlier = status
        return status

    def _usable(self) -> Status | None:
        """The record, as long as its pod is the one that is there, or it has the last word."""
        pod = self._sight.pods.get(0)
        if self._record is None or self._record.is_over:
            return self._record
        return self._record if pod is not None and pod.uid == self._of and pod.is_running else None
