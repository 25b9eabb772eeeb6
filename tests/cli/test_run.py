"""Run, follow and end a gang from the command line; its supervisor is a stand-in, all else is real."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.engines.local import rundir
from allranks.engines.local.control import ENGINE
from tests.cli.conftest import ENTRY, Allranks, job
from tests.gangs.gang import eventually
from tests.terminal import Terminal

pytestmark = pytest.mark.gang


def test_a_run_that_succeeds_shows_its_lines_on_stdout_and_its_story_on_stderr(process: Allranks) -> None:
    said = process(*job("running,speak,pause,succeed"))
    assert said.code == 0
    assert sorted(said.out.splitlines()) == [
        "rank 0 | hello from rank 0",
        "rank 0 | last words of 0",
        "rank 1 | hello from rank 1",
        "rank 1 | last words of 1",
    ]
    assert said.err.splitlines() == [
        "allranks: attempt 0: 2 ranks on 2 nodes running",
        "allranks: digits succeeded in 0:12",
    ]


def test_a_run_that_fails_ends_with_its_cause_and_the_culprits_exit_code(process: Allranks) -> None:
    said = process(*job("running,pause,restart,running,pause,fail"))
    assert said.code == 137
    assert said.err.splitlines() == [
        "allranks: attempt 0: 2 ranks on 2 nodes running",
        "allranks: attempt 0: rank 1 on node 0: killed by SIGKILL; restarting (1 of 3)",
        "allranks: attempt 1: 2 ranks on 2 nodes running",
        "allranks: digits failed in 0:12 after 1 restart: rank 1 on node 0: killed by SIGKILL (restarts: 1 of 1 used)",
        "  | step 7",
        "allranks: secondary: rank 0: Connection reset by peer",
        "allranks: full log: allranks logs digits --attempt 1 --rank 1",
    ]


def test_a_supervisor_that_is_killed_ends_the_command_line_with_the_truth(process: Allranks) -> None:
    said = process(*job("running,pause,die"))
    assert said.code == 70
    assert re.search(r"allranks: digits failed: its supervisor \(pid \d+\) is gone\n", said.err)


def test_detach_prints_the_name_and_leaves_the_run(process: Allranks) -> None:
    said = process(*job("running,wait", "--detach"))
    assert (said.code, said.out, said.err) == (0, "digits\n", "")
    assert ENGINE.status("digits").phase in ("pending", "running")


def test_a_name_that_lives_is_refused(process: Allranks) -> None:
    process(*job("running,wait", "--detach"))
    said = process(*job("running,wait"))
    assert said.code == 69
    assert "end it with 'allranks cancel digits', or give this one another name: '--name OTHER'." in said.err


# Signals


def started(*argv: str, **options: object) -> subprocess.Popen[str]:
    command = subprocess.Popen(  # type: ignore[call-overload]
        [*ENTRY, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    eventually("a plan of digits", lambda: rundir.RunDir(rundir.runs_home() / "digits").plan.exists())
    eventually("digits running", lambda: ENGINE.status("digits").phase == "running")
    time.sleep(0.3)  # until it follows; a signal that comes sooner cancels as well, but says less
    return command  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [
        (signal.SIGINT, 130, "cancelled by Ctrl-C"),
        (signal.SIGTERM, 143, "the command line got SIGTERM"),
        (signal.SIGHUP, 143, "the command line got SIGHUP"),
    ],
)
def test_a_signal_to_the_command_line_cancels_the_run(number: int, code: int, reason: str) -> None:
    with started(*job("running,wait")) as command:
        command.send_signal(number)
        _, err = command.communicate(timeout=20)
    assert command.returncode == code
    assert err.splitlines()[-2:] == ["allranks: ending digits ...", f"allranks: digits cancelled in 0:12: {reason}"]
    assert (ENGINE.status("digits").phase, ENGINE.status("digits").exit_code) == ("cancelled", code)


def test_a_command_line_that_is_killed_takes_its_run_with_it() -> None:
    with started(*job("running,wait")) as command:
        command.kill()
    eventually("the supervisor's end", lambda: rundir.RunDir(rundir.runs_home() / "digits").holder() is None)
    assert ENGINE.status("digits").phase == "cancelled"


def test_a_second_ctrl_c_does_not_wait_for_the_grace() -> None:
    with started(*job("deaf,running,sleep")) as command:
        command.send_signal(signal.SIGINT)
        time.sleep(0.3)
        command.send_signal(signal.SIGINT)
        assert command.wait(5) == 130
    holder = rundir.RunDir(rundir.runs_home() / "digits").holder()
    assert holder is not None, "its supervisor goes on ending it"
    os.kill(holder.pid, signal.SIGKILL)


# On a terminal


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as terminals:
        yield lambda *argv: terminals.enter_context(Terminal([*ENTRY, *argv]))


Terminals = Callable[..., Terminal]


def test_a_terminal_shows_coloured_lines_above_a_panel(terminal: Terminals) -> None:
    shown = terminal(*job("running,speak,pause,pause,succeed"))
    shown.expect(r"\x1b\[36mrank 0 \| \x1b\[0mhello from rank 0")
    shown.expect(r"digits · running · attempt 0 · restarts 0 of 3 · 2 of 2 nodes there · ")
    assert shown.end() == 0
    assert "digits succeeded in 0:12" in shown.seen


def test_ctrl_c_on_a_terminal_asks_and_d_lets_the_run_go_on(terminal: Terminals) -> None:
    shown = terminal(*job("running,speak,wait"))
    shown.expect("hello from rank 1")
    shown.type("\x03")
    shown.expect(r"\[d\]etach and let it go on, or \[c\]ancel\?")
    shown.type("x")  # neither: asked again, and nothing is ended by a slip
    shown.expect(r"\? x[^?]*\[c\]ancel\?")
    shown.type("d")
    assert shown.end() == 0
    assert "digits goes on; see: allranks logs -f digits, allranks cancel digits" in shown.seen
    time.sleep(0.2)
    assert ENGINE.status("digits").phase == "running"


@pytest.mark.parametrize("answer", ["c", "\x03"])
def test_ctrl_c_on_a_terminal_asks_and_c_or_another_ctrl_c_cancels(terminal: Terminals, answer: str) -> None:
    shown = terminal(*job("running,speak,wait"))
    shown.expect("hello from rank 1")
    shown.type("\x03")
    shown.expect(r"\[c\]ancel\?")
    shown.type(answer)
    assert shown.end() == 130
    assert "digits cancelled in 0:12: cancelled by Ctrl-C" in shown.seen


def test_the_panel_has_a_line_a_rank_and_fits_a_terminal_that_becomes_narrower(terminal: Terminals) -> None:
    shown = terminal(*job("running,speak,wait"))
    shown.expect(r"rank 0  node 0  running +hello from rank 0\r\n  rank 1  node 1  running +hello from rank 1")
    shown.resize(24, 40)
    before = len(shown.seen)
    shown.expect(r"rank 1  node 1  running +\.\.\.")
    drawn = shown.seen[before:].split("\x1b[J")[1]
    assert max(map(len, drawn.splitlines())) < 40
    assert shown.seen[before:].startswith("\r\x1b[5A\x1b[J"), "three lines that the terminal has broken into six"


def test_a_terminal_that_is_lost_cancels_the_run_and_breaks_nothing(
    terminal: Terminals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shown = terminal(*job("running,speak,wait"))
    shown.expect("hello from rank 1")
    os.close(shown.master)
    assert shown.process.wait(30) == 143
    assert ENGINE.status("digits").reason == "the command line got SIGHUP"
    assert not list(tmp_path.glob("allranks-broke-*"))


def test_a_run_is_watched_on_the_terminals_other_screen_until_it_is_over(
    terminal: Terminals, process: Allranks
) -> None:
    process(*job("running,speak,wait", "--detach"))
    shown = terminal("status", "--watch", "digits")
    shown.expect(r"\x1b\[\?1049h(?s:.*)digits · running · (?s:.*)rank 1  node 1  running")
    shown.resize(4, 30)
    shown.expect(r"digits · running · attempt\x1b\[K|digits · running · attem\.*")
    ENGINE.cancel("digits", reason="enough")
    assert shown.end() == 0
    assert re.search(r"\x1b\[\?1049l(?s:.*)digits: cancelled", shown.seen)


def test_a_run_is_watched_line_by_line_without_a_terminal(process: Allranks) -> None:
    process(*job("running,pause,restart,running,pause,pause,fail", "--detach"))
    said = process("status", "--watch", "digits")
    assert said.code == 0
    assert "attempt 1: 2 ranks on 2 nodes running" in said.out.splitlines()
    assert "digits: failed" in said.out
    assert process("status", "--watch", "-o", "json").code == 2


# The other verbs


def test_status_json_has_the_fixed_keys(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,fail"))
    status = json.loads(allranks("status", "digits", "-o", "json").out)
    fixed = ["name", "engine", "phase", "reason", "attempt", "restarts", "world_size", "nodes", "transport", "causes"]
    assert set(fixed) <= set(status)
    assert set(status["nodes"][0]) >= {"node", "name", "address", "phase", "reason", "ranks"}
    assert set(status["nodes"][0]["ranks"][0]) >= {"rank", "local_rank", "pid", "state", "exit"}
    cause = ["attempt", "rank", "node", "kind", "signal", "exit", "at", "message", "tail", "log", "secondary"]
    assert set(cause) <= set(status["causes"][0])
    assert (status["phase"], status["restarts"], status["world_size"]) == ("failed", {"used": 0, "allowed": 3}, 2)


def test_status_for_people_has_nodes_ranks_and_causes(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,fail"))
    said = allranks("status")
    assert said.err == "run digits, the newest\n"
    lines = [re.sub(r" +", " ", line).strip() for line in said.out.splitlines()]
    assert lines[0] == "digits: failed - rank 1 on node 0: killed by SIGKILL (restarts: 1 of 1 used)"
    facts = "engine local attempt 0 restarts 0 of 3 2 ranks on 2 nodes took 0:12 exit code 137"
    assert lines[1] == facts
    assert lines[2] == "NODE NAME ADDRESS PHASE RANKS WHY"
    assert re.fullmatch(r"0 digits-0 127\.1\.0\.1 running 0: running, pid \d+", lines[3])
    assert lines[6].startswith("attempt 0 (2026-01-0")
    assert lines[7:9] == ["| step 7", "secondary: rank 0: Connection reset by peer"]


def test_list_shows_the_newest_first_and_the_runs_before_it(process: Allranks, allranks: Allranks) -> None:
    first, second = allranks("list").err.splitlines()
    assert first == "no runs yet; start one with: allranks run -- python SCRIPT"
    assert second.startswith("No cluster was asked: no kubeconfig (")
    process(*job("running,fail"))
    process(*job("running,succeed"))
    rows = [line.split()[:3] for line in allranks("list").out.splitlines()]
    assert rows == [["NAME", "ENGINE", "PHASE"], ["digits", "local", "succeeded"], ["digits.1", "local", "failed"]]


def test_logs_filter_by_rank_and_name_what_is_not_there(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,speak,succeed"))
    said = allranks("logs", "digits", "--rank", "1")
    assert said.out == "rank 1 | hello from rank 1\nrank 1 | last words of 1\n"
    said = allranks("logs", "digits", "--rank", "2")
    assert (said.code, said.err) == (2, "allranks: run digits has no rank 2; it has ranks 0 to 1\n")
    said = allranks("logs", "digits", "--attempt", "3")
    assert (said.code, said.err) == (69, "allranks: run digits has no logs of attempt 3; attempts with logs: 0\n")


def test_logs_since_takes_a_duration_or_a_time(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,speak,succeed"))
    for when in ("1h", "2020-01-31", "2020-01-31T17:30:00Z", "2020-01-31T17:30+05:30"):
        assert len(allranks("logs", "digits", "--since", when).out.splitlines()) == 4
    said = allranks("logs", "digits", "--since", "yesterday")
    allowed = "allowed is a duration such as 90s, 10m or 1h30m, or a time such as 2026-01-31T17:30"
    assert (said.code, said.err) == (2, f"allranks: --since: found 'yesterday'; {allowed}\n")
    said = allranks("logs", "digits", "--since", "2999-01-31")
    assert said.code == 2
    assert said.err.startswith("allranks: --since 2999-01-31: that is yet to come; it is 20")


def test_logs_of_a_run_that_is_gone_say_which_are_there(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,succeed"))
    said = allranks("logs", "digit")
    first, second = said.err.splitlines()
    assert (said.code, first) == (69, "allranks: no run named digit; did you mean digits?; runs here: digits")
    assert second.startswith("No cluster was asked: no kubeconfig (")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../runs/digits", "../runs/digits"), ("a\nb", r"'a\nb'..."), ("x" * 5000, repr("x" * 60) + "...")],
)
def test_what_cannot_be_a_name_is_no_run_and_harms_no_terminal(allranks: Allranks, name: str, shown: str) -> None:
    said = allranks("status", name)
    first, second = said.err.splitlines()
    assert (said.code, first) == (69, f"allranks: no run named {shown}; there are no runs here")
    assert second.startswith("No cluster was asked: no kubeconfig (")


@pytest.mark.parametrize("verb", ["status", "logs", "cancel", "shell"])
def test_an_empty_name_is_not_the_newest_or_the_only_run(process: Allranks, allranks: Allranks, verb: str) -> None:
    process(*job("running,wait", "--detach"))
    said = allranks(verb, "")
    assert (said.code, said.err) == (2, "allranks: NAME: found ''; name a run, or leave it out; see: allranks list\n")
    assert not ENGINE.status("digits").is_over


def test_logs_follow_to_the_end_of_the_run(process: Allranks) -> None:
    process(*job("running,pause,speak,pause,succeed", "--detach"))
    assert len(process("logs", "-f", "digits").out.splitlines()) == 4


def test_cancel_ends_the_only_run_that_is_alive_and_twice_is_no_error(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,wait", "--detach"))
    said = allranks("cancel")
    assert (said.code, said.out, said.err) == (0, "run digits: cancelled\n", "ending run digits ...\n")
    assert allranks("cancel", "digits").out == "run digits is over already: cancelled\n"
    said = allranks("cancel")
    assert (said.code, said.err) == (69, "allranks: no run is alive\n")


def test_cancel_never_guesses_among_several(process: Allranks, allranks: Allranks) -> None:
    process(*job("running,wait", "--detach"))
    process(*job("running,wait", "--detach", "--name", "other"))
    said = allranks("cancel")
    assert (said.code, said.err) == (69, "allranks: which one? These runs are alive: other, digits\n")


def test_the_names_of_runs_are_completed(process: Allranks, monkeypatch: pytest.MonkeyPatch) -> None:
    process(*job("running,succeed"))
    monkeypatch.setenv("_ALLRANKS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "allranks status dig")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert process().out == "plain,digits\n"
