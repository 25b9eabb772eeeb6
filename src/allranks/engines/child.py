"""A run that a process of ours keeps: our child, which ends it when our end of its lifeline closes unspoken."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.errors import EngineError


class Child:
    """What such a run owes to its process. ``lifeline`` is None for one that was let go of from the start."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int | None) -> None:
        self._process, self._lifeline = process, lifeline

    def detach(self) -> None:
        """Let the run go on without us."""
        if self._lifeline is not None:
            try:
                os.write(self._lifeline, b"d")
            except BrokenPipeError:
                pass  # the process has ended: there is nothing to let go of
            os.close(self._lifeline)
            self._lifeline = None

    def wait(self, timeout: float) -> bool:
        """Whether the process has ended within so many seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def start(
    command: Sequence[str], log: Path, env: Mapping[str, str], *, detach: bool
) -> tuple[subprocess.Popen[bytes], int | None]:
    """Start such a process in a session of its own, its output in ``log``. Returns it and our end of its lifeline.

    It is told the number of its own end, by ``--lifeline N`` at the end of its command. With ``detach`` there is none.
    """
    theirs, ours = (None, None) if detach else os.pipe()
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, *(["--lifeline", str(theirs)] if theirs is not None else [])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=() if theirs is None else (theirs,),
                start_new_session=True,
                env=env,
            )
    except BaseException:
        if ours is not None:
            os.close(ours)
        raise
    finally:
        if theirs is not None:
            os.close(theirs)
    return process, ours


def is_alive(name: str, where: str) -> EngineError:
    """What to raise where a run of that name would take the place of a living one; ``where`` says which."""
    return EngineError(
        f"a run named {name} is alive {where}\n"
        f"Watch it with 'allranks logs -f {name}', end it with 'allranks cancel {name}', "
        "or give this one another name: '--name OTHER'."
    )
