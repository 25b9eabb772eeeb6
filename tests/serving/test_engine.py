"""A serving rank that cannot go on ends, and says why and whether another start may go better."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("transformers")

from allranks.serving.folder import NOT_NOW, UNFIT, NotNow
from allranks.serving.options import Options

pytestmark = pytest.mark.torch

LOSES_A_THREAD = """
import threading, time
from allranks.serving import engine, folder, options

def fetch(model):
    threading.Thread(target=lambda: {}["a"], name="the one that hears").start()
    time.sleep(60)

folder.fetch = fetch
engine.run(options.Options("m"))
"""


def test_a_rank_whose_thread_dies_ends_as_nobody_else_would_notice() -> None:
    follower = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", LOSES_A_THREAD]
    done = subprocess.run(command, env=follower, capture_output=True, text=True, timeout=240)
    assert done.returncode == NOT_NOW, done.stderr
    assert "serving: rank 1: thread the one that hears died: KeyError" in done.stdout
    assert "KeyError: 'a'" in done.stderr


LOADS_FOR_LONG = """
import time
from allranks.serving import engine, folder, options

def fetch(model):
    print("loading", flush=True)
    time.sleep(60)

folder.fetch = fetch
engine.run(options.Options("m"))
"""


def test_a_rank_that_is_told_to_end_before_it_serves_ends_at_once() -> None:
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    with subprocess.Popen([sys.executable, "-c", LOADS_FOR_LONG], env=env, stdout=subprocess.PIPE, text=True) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "loading\n"
            rank.terminate()
            assert rank.wait(20) == -signal.SIGTERM
        finally:
            rank.kill()


def test_libraries_that_cannot_be_loaded_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('libtorch.so: failed to map segment')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "allranks.serving", "--model=m"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == UNFIT
    why = "is memory limited (ulimit -v), or the installation damaged?"
    assert done.stderr == f"serving: ImportError: libtorch.so: failed to map segment; {why}\n"


def test_an_interrupt_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "transformers.py").write_text("import time; print('importing', flush=True); time.sleep(60)")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", "allranks.serving", "--model=m"], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as rank:  # fmt: skip
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "importing\n"
            rank.send_signal(signal.SIGINT)
            assert (rank.communicate(timeout=20)[1], rank.returncode) == ("", -signal.SIGINT)
        finally:
            rank.kill()


def test_a_rank_whose_loop_breaks_says_why_unless_a_lost_peer_broke_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from allranks.serving import engine, peers

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = threading.Event()

    def leave(code: int) -> None:
        ended.set()
        threading.Event().wait()  # as if the process were gone

    monkeypatch.setattr(peers, "leave", leave)
    for said in ("Connection closed by rank 0: it is gone", ""):
        rank = engine.Rank(Options("m"))
        loop = threading.Thread(target=rank._loop_broke, args=[RuntimeError("pair.cc: GLHF")], daemon=True)
        loop.start()
        if said:
            threading.Thread(target=rank._broken, args=[said], daemon=True).start()
        assert ended.wait(10)
        told = capsys.readouterr()
        assert (said in told.out, "GLHF" in told.err) == (True, not said)
        ended.clear()


def test_who_has_nobody_left_to_answer_drains_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from allranks.serving import engine

    monkeypatch.setenv("RANK", "1")
    rank = engine.Rank(Options("m"))
    rank.front, rank.pipe = SimpleNamespace(), SimpleNamespace(heard=lambda: iter(()))  # type: ignore[assignment]
    rank._draining, rank._live = True, {"r0"}
    rank._listen()
    assert not rank._live


def test_a_warm_up_that_takes_too_long_may_go_better_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from allranks.serving import engine

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(engine, "FIRST_ANSWER", 0.01)
    rank = engine.Rank(Options("m"))
    rank.loop = SimpleNamespace(add_request=lambda *_, **__: None)  # type: ignore[assignment]
    with pytest.raises(NotNow, match=r"a request of 3 tokens was not answered within 0.01 s"):
        rank._run_one([1, 2, 3], {})
