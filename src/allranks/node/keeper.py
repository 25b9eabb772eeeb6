"""Keeps a gang's ledger in a ConfigMap of the run's own, where it outlives all of its pods (``failure.force_delete``).

The coordinator writes it whenever an attempt begins or is over, and when its pod is told to go; the coordinator in a
new pod reads it before its roll call. A gang whose ledger cannot be reached goes on without it, and says so.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple
from urllib.parse import quote

from allranks.node import ledger

if TYPE_CHECKING:
    from allranks.node.account import Account
    from allranks.node.course import Course

KEY = "ledger.json"
AGAIN = 5.0
LAST = 3.0
"""Seconds before what could not be written is tried again, and for the last word."""


def name_of(run: str) -> str:
    """The ConfigMap's name."""
    return f"{run}-allranks-ledger"


class Keeper:
    """Of one coordinator, in set number ``sets``; ``tell`` is given a line for what goes wrong."""

    def __init__(self, account: Account, run: str, sets: int, tell: Callable[[str], None]) -> None:
        self._account, self._name, self._sets, self._tell = account, name_of(run), sets, tell
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._kept: Tuple[object, ...] = ()
        self._said = ""

    def read(self) -> Optional[ledger.Ledger]:
        """What the coordinator before this one kept; None where it kept nothing. Blocks; raises OSError, ValueError."""
        text = (self._account.ask("GET", self._path()).get("data") or {}).get(KEY)
        try:
            return ledger.read(json.loads(text)) if text else None
        except (TypeError, KeyError) as error:
            raise ValueError(f"it holds no ledger: {error!r}") from error

    def _path(self) -> str:
        return f"{self._account.of('configmaps')}/{quote(self._name)}"

    def begin(self, course: Course) -> None:
        """Keep this course from now on."""
        self._course, self._kept = course, ledger.mark(course)

    def look(self) -> None:
        """Something may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write whenever there is something new; for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not await self._write():
                await asyncio.sleep(AGAIN)
                self._changed.set()

    async def finish(self) -> None:
        """Write what is not written yet, if that takes no longer than LAST."""
        try:
            await asyncio.wait_for(self._write(), LAST)
        except asyncio.TimeoutError:
            self._say(f"no answer from the API server within {LAST:g} s")

    async def _write(self) -> bool:
        async with self._writing:
            mark = ledger.mark(self._course)
            if mark == self._kept:
                return True
            entry = ledger.entry(self._course, self._sets)
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._put, entry)
            except (OSError, ValueError) as error:
                self._say(str(error))
                return False
            self._kept = mark
            return True

    def _put(self, entry: Dict[str, Any]) -> None:
        if not self._account.ask("PATCH", self._path(), {"data": {KEY: json.dumps(entry)}}):
            raise OSError("it is not there")

    def _say(self, why: str) -> None:
        if why != self._said:
            self._said = why
            self._tell(f"what the gang has behind it is not kept in ConfigMap {self._name}: {why}")
