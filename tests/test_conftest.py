"""The watch over processes must itself be seen to work."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.processes import adopt_orphans, command_of, descendants, kill, wait_until_gone

DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(60)"


def test_a_daemon_that_a_test_leaves_is_seen_and_killed() -> None:
    adopt_orphans()
    before = descendants(os.getpid())
    subprocess.run([sys.executable, "-c", DAEMON], check=True)
    left = wait_until_gone(before, seconds=0)
    assert len(left) == 1
    assert "time.sleep(60)" in command_of(left.copy().pop().pid)
    kill(left)
    assert not wait_until_gone(before, seconds=5)


def test_every_test_has_its_own_state_and_no_identity_of_an_outer_gang() -> None:
    assert "xdg" in os.environ["XDG_STATE_HOME"]
    assert "RANK" not in os.environ
