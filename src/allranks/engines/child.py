"""A run that a process of ours keeps: our child, which ends it when our end of its lifeline closes unspoken."""

from __future__ import annotations

import os
import subprocess


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
