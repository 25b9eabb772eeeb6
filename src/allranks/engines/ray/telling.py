"""The client's end of ``tell``: what a service's door says, heard from a process in the head's pod."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from allranks.engines.kubernetes import exec
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.pods import Pod
from allranks.engines.kubernetes.refusals import NoRight
from allranks.errors import EngineError, first_line

TELL = ("python3", "-m", "allranks.engines.ray.tell")
TOLD_WITHIN = 60.0
"""Seconds for a process in the head's pod to reach Ray and the door; one that follows says something every second."""
MOST_LINES = 20_000
AGAIN = 3.0
"""Seconds until a process in the head's pod is started again."""


def ask(client: Client, name: str, head: Pod | None) -> tuple[dict[str, Any] | None, str]:
    """What the door tells now, and else why nothing is known of it."""
    if head is None:
        return None, ""
    try:
        done = exec.run(client, head.name, head.container, (*TELL, name), head.namespace, timeout=TOLD_WITHIN)
    except EngineError as error:
        return None, not_shown(error)
    told = [line for line in done.output.splitlines() if line.startswith("{")]
    return (json.loads(told[-1]), "") if told else (None, "")


def not_shown(error: EngineError) -> str:
    """A note of a status that has to do without the door's word."""
    return f"what the ranks do is not shown: {first_line(error)}"


_OPEN: dict[str, Telling] = {}
"""By the uid of the RayService: who follows its lines and who asks how it stands share one process in its pod."""


def telling(client: Client, main: Object) -> Telling:
    """Hear of a service, together with whoever does so already in this process; each closes it once."""
    uid = str(main["metadata"]["uid"])
    if uid not in _OPEN:
        _OPEN[uid] = Telling(client, str(main["metadata"]["name"]), uid)
    _OPEN[uid].users += 1
    return _OPEN[uid]


class Telling(threading.Thread):
    """Keeps what ``tell --follow`` prints in the head's pod, and starts it again when it has ended.

    ``note`` says why it may not be asked, if that is so.
    """

    def __init__(self, client: Client, name: str, uid: str) -> None:
        super().__init__(daemon=True)
        self._client, self._name, self._uid = client, name, uid
        self._head: Pod | None = None
        self._there, self._closing = threading.Event(), threading.Event()
        self._newest: dict[str, Any] | None = None
        self._lines: deque[Sequence[Any]] = deque(maxlen=MOST_LINES)
        self._count = self._next = self.users = 0
        self._lock = threading.Lock()
        self._session: exec.Session | None = None
        self.note = ""
        self.start()

    def asked(self, head: Pod | None) -> dict[str, Any] | None:
        """What was told last by the head that is there; None while nothing is."""
        if head is None or (self._head is not None and head.uid != self._head.uid):
            self._newest = None
        self._head = head
        (self._there.set if head else self._there.clear)()
        return self._newest

    def since(self, at: int) -> tuple[list[Sequence[Any]], int]:
        """Lines from number ``at`` on, and the next number."""
        with self._lock:
            first = self._count - len(self._lines)
            return list(self._lines)[max(at - first, 0) :], self._count

    def run(self) -> None:
        """Until it is closed."""
        while not self._closing.is_set():
            head = self._head
            if self._there.wait(AGAIN) and head is not None:
                try:
                    self._hear(head)
                except NoRight as error:
                    self.note = not_shown(error)
                except (EngineError, TimeoutError):
                    pass  # the head is going, or is not ready for it, or its host is lost: it is tried again
                self._newest = None
                self._closing.wait(AGAIN)

    def _hear(self, head: Pod) -> None:
        command, partial = (*TELL, self._name, "--follow", "--since", str(self._next)), b""
        with exec.session(self._client, head.name, head.container, command, head.namespace, stdin=True) as session:
            self._session = session
            while not self._closing.is_set() and (piece := session.read(TOLD_WITHIN)) is not None:
                if piece[0] == exec.STDOUT:
                    *whole, partial = (partial + piece[1]).split(b"\n")
                    for line in whole:
                        if line.startswith(b"{"):
                            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        with self._lock:  # who follows asks meanwhile
            self._lines.extend(told["lines"])
            self._count += len(told["lines"])
        self._newest, self._next, self.note = told, told["next"], ""

    def close(self) -> None:
        """Stop, where nobody else wants to hear."""
        self.users -= 1
        if self.users > 0:
            return
        _OPEN.pop(self._uid, None)
        self._closing.set()
        self._there.set()
        if self._session is not None:
            self._session.close()
