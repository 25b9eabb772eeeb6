"""The zygote's imports: one name at a time, with a look at the world in between and in the midst of them."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Mapping, Optional

from allranks.node.fork import imports
from allranks.node.fork.bytecode import Bytecode

LOOK_EVERY = 0.02  # seconds between looks in the midst of an import
SLOW_IMPORT = 0.005  # seconds; a faster one has not initialised CUDA
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Warm:
    """What is to be imported and what came of it.

    ``poisoned`` and ``unsafe`` say why no rank can be forked any more, and ``culprit`` names the module that did
    it. ``look`` runs in signal handlers, while ``importing``. ``users`` are the job's own entries of ``sys.path``.
    ``bytecode`` is the directory for compiled code that python does not keep itself.
    """

    def __init__(self, look: Callable[[], None], users: Iterable[str], bytecode: Optional[str] = None) -> None:
        self.count, self.seconds = 0, 0.0
        self.poisoned = self.unsafe = self.culprit = ""
        self.failed: Dict[str, str] = {}
        self.importing = False
        self._look = look
        self._bytecode = Bytecode(bytecode).in_use if bytecode else nullcontext
        self._wanted: Deque[str] = deque()
        self.installed = imports.Installed(users)

    def want(self, names: Iterable[str]) -> None:
        self._wanted.extend(name for name in names if name not in sys.modules)

    @property
    def is_waiting(self) -> bool:
        return bool(self._wanted)

    def import_next(self) -> None:
        """Import one name; after the last, freeze what there is."""
        name = self._wanted.popleft()
        useless = self.unsafe or self.poisoned or name in self.failed or name in sys.modules
        if not useless and name.split(".")[0] != "allranks":
            self._import(name)
        if not self._wanted:
            freeze()

    def _import(self, name: str) -> None:
        began = time.monotonic()
        with self._watching() as guard, self._bytecode():
            error = imports.import_installed(name, self.installed)
        seconds = time.monotonic() - began
        self.count, self.seconds = self.count + 1, self.seconds + seconds
        self._judge(name, error, guard.refused)
        if seconds > SLOW_IMPORT and imports.cuda_is_initialised():
            self.poisoned, self.culprit = f"importing {name} initialised CUDA", name

    @contextmanager
    def _watching(self) -> Iterator[imports.Guard]:
        """Refuse the user's modules, and look around all the while."""
        guard = imports.Guard(self.installed)
        sys.meta_path.insert(0, guard)
        before = signal.signal(signal.SIGALRM, lambda number, frame: self._look())
        handlers = {number: signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGCHLD, *ENDING)}
        self.importing = True
        signal.setitimer(signal.ITIMER_REAL, LOOK_EVERY, LOOK_EVERY)
        try:
            yield guard
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.importing = False
            self._take_back(handlers)
            signal.signal(signal.SIGALRM, before)
            if guard in sys.meta_path:
                sys.meta_path.remove(guard)

    def _take_back(self, handlers: Mapping[signal.Signals, Any]) -> None:
        """A module may take a signal, which its ranks would have to keep and the zygote cannot spare."""
        for number, handler in handlers.items():
            if signal.signal(number, handler) is not handler:
                self.unsafe = f"a module took {number.name} for itself when it was imported"

    def _judge(self, name: str, error: str, refused: List[str]) -> None:
        """Note a failure. One that the rank would meet too is the rank's affair; anything stranger ends forking."""
        if error:
            self.failed[name] = error
        if refused:
            self.unsafe = f"{name} imports {refused[0]}, which is the job's own module"
        elif error and not error.startswith(("ImportError", "ModuleNotFoundError")):
            self.unsafe = f"importing {name} raised {error}"
        elif len(sys._current_frames()) > 1:
            self.unsafe = f"importing {name} started a thread"
        if self.unsafe:
            self.culprit = name


def freeze() -> None:
    """Keep the collector off pages that ranks share: with torch and DeepSpeed 12 MB a rank are private, not 120."""
    gc.freeze()
