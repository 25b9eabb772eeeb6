"""What a node holds is ended, also while its zygote is busy."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.node.ranks import KILL_WAIT
from tests.node.gangs import make_gang

ENDS = """
import asyncio, json, sys, time
from allranks.node.gang import Gang
from allranks.node.ranks import Ranks

async def end(zygote, plan):
    ranks = Ranks(Gang.from_json(json.loads(plan)), 0, zygote, lambda **message: None)
    ranks.open()
    began = time.monotonic()
    await ranks.stop(0.0, for_good=True)
    print(time.monotonic() - began)

asyncio.run(end(*sys.argv[1:]))
"""


@pytest.mark.gang
def test_the_end_of_a_run_does_not_wait_for_a_zygote_that_is_busy(tmp_path: Path) -> None:
    name, gang = f"allranks-{secrets.token_hex(8)}", make_gang(state=str(tmp_path), cache=str(tmp_path))
    argv = [sys.executable, "-c", ENDS, name, json.dumps(vars(gang))]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:  # it answers nobody, as in an import
        zygote.bind(f"\0{name}")
        zygote.listen(1)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert float(done.stdout) < KILL_WAIT / 2, done.stderr
