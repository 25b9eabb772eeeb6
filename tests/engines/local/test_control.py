"""Start, watch and end runs whose supervisor is a stand-in, a real process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.engines.engine import Plan
from allranks.engines.local import control, plan, rundir
from allranks.engines.local.control import ENGINE, LocalRun
from allranks.errors import EngineError, NotFound
from allranks.spec.job import Job
from tests.gangs.gang import eventually


@pytest.fixture
def submit(submitted: list[LocalRun]) -> Submit:
    def submit(act: str, name: str = "digits", *, detach: bool = False, grace: str = "1s") -> LocalRun:
        submitted.append(ENGINE.submit(planned(act, name, grace), detach=detach))
        return submitted[-1]

    return submit


def planned(act: str, name: str = "digits", grace: str = "1s") -> Plan:
    fields = {"name": name, "nodes": 2, "ranks_per_node": 2, "run": ("sh", "-c", "true"), "failure": {"grace": grace}}
    return plan.plan(Job.model_validate({**fields, "env": {"ACT": act}}), Path("/"))


Submit = Callable[..., LocalRun]


def test_a_submitted_run_has_its_files_and_a_living_supervisor(submit: Submit) -> None:
    submit("running,wait")
    run = control.find("digits")
    assert (run.path / "secret").stat().st_mode & 0o777 == 0o600
    assert len((run.path / "secret").read_text()) == 64
    assert (run.path / "spec.yaml").read_text().startswith("kind: Job\nname: digits\n")
    assert run.path.stat().st_mode & 0o777 == 0o700
    eventually("digits running", lambda: ENGINE.status("digits").phase == "running")
    holder = run.holder()
    assert holder is not None
    assert os.getsid(holder.pid) == holder.pid, "it has a session of its own: a Ctrl-C in the terminal is not its"


def test_a_name_that_lives_is_refused_with_the_way_out(submit: Submit) -> None:
    submit("running,wait")
    with pytest.raises(EngineError) as caught:
        submit("wait")
    holder = control.find("digits").holder()
    assert holder is not None
    assert str(caught.value) == (
        f"a run named digits is alive (pid {holder.pid})\n"
        "Watch it with 'allranks logs -f digits', end it with 'allranks cancel digits', "
        "or give this one another name: '--name OTHER'."
    )


def test_of_many_submits_of_one_name_at_once_exactly_one_begins(submit: Submit) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.engines.local.test_control import planned, control, ENGINE\n"
        "control.SUPERVISOR = Path(sys.argv[1])\n"
        "ENGINE.submit(planned('running,wait'), detach=True)"
    )
    command = [sys.executable, "-c", code, str(control.SUPERVISOR)]
    submits = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [submit.communicate()[1] for submit in submits]
    assert sorted(submit.returncode for submit in submits) == [0, 1, 1, 1]
    assert sum("a run named digits is alive" in error for error in errors) == 3


def test_the_name_of_a_finished_run_can_be_used_again(submit: Submit) -> None:
    submit("succeed").wait(5)
    submit("running,wait")
    assert [status.name for status in ENGINE.list()] == ["digits", "digits.1"]
    assert ENGINE.status("digits.1").phase == "succeeded"


def test_a_supervisor_that_cannot_start_is_an_error_with_its_last_words_and_leaves_nothing(submit: Submit) -> None:
    with pytest.raises(EngineError, match=r"^run digits could not be started:\nno port is free on 127\.1\.0\.1$"):
        submit("refuse")
    assert rundir.all_runs() == []
    assert not (rundir.runs_home() / "digits").exists()


def test_a_supervisor_whose_disk_is_too_full_to_say_so_is_spoken_for(
    submit: Submit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "full.py").write_text("raise SystemExit(73)")
    monkeypatch.setattr(control, "SUPERVISOR", tmp_path / "full.py")
    with pytest.raises(EngineError, match=r"ended with 73, and said nothing; \d+ KiB are left for .*: make room"):
        submit("wait")


def test_a_service_whose_port_is_taken_is_told_who_has_it_and_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} of 127.0.0.1 cannot be had: process {os.getpid()} listens"):
            ENGINE.submit(replace(planned("wait"), address=f"http://127.0.0.1:{port}"), detach=True)
    assert ENGINE.list() == []


def test_a_gang_that_is_over_at_once_is_no_error(submit: Submit) -> None:
    submit("fail").wait(5)
    assert ENGINE.status("digits").exit_code == 137


def test_a_state_directory_that_cannot_be_written_is_one_clear_error(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(EngineError) as caught:
        submit("succeed")
    assert str(caught.value) == (
        f"cannot write the run's directory {tmp_path}/file/allranks/runs/digits: Not a directory\n"
        "Runs are kept under $XDG_STATE_HOME (default ~/.local/state); set it to a folder that can be written."
    )


def test_the_supervisor_sees_no_rank_variables_of_the_shell(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("KEPT", "yes")
    submit("running,wait")
    holder = control.find("digits").holder()
    assert holder is not None
    seen = Path(f"/proc/{holder.pid}/environ").read_bytes().split(b"\0")
    assert b"KEPT=yes" in seen
    assert b"RANK=7" not in seen


def test_a_run_ends_when_the_process_that_submitted_it_dies(submit: Submit) -> None:
    run = submit("running,wait")
    assert run._lifeline is not None
    os.close(run._lifeline)  # what the kernel does for a process that was killed
    run._lifeline = None
    assert run.wait(5)
    assert ENGINE.status("digits").phase == "cancelled"


def test_a_run_that_is_let_go_of_lives_on(submit: Submit) -> None:
    run = submit("running,wait")
    run.detach()
    run.detach()
    assert not run.wait(0.3)
    assert ENGINE.status("digits").phase == "running"


def test_a_detached_run_has_no_lifeline(submit: Submit) -> None:
    assert submit("running,wait", detach=True)._lifeline is None


# Cancel


def test_cancel_waits_until_the_run_is_gone_and_says_why_it_ended(submit: Submit) -> None:
    run = submit("running,wait")
    status = ENGINE.cancel("digits", reason="enough", code=130)
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", "enough", 130)
    assert run.wait(0.5)
    assert ENGINE.cancel("digits", reason="again").reason == "enough"


def test_cancel_of_a_stopped_supervisor_wakes_it(submit: Submit) -> None:
    submit("running,wait")
    holder = control.find("digits").holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGSTOP)
    assert ENGINE.cancel("digits", reason="enough").phase == "cancelled"


def test_cancel_kills_a_supervisor_that_does_not_listen(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CANCEL_SLACK", 0.3)
    submit("deaf,running,sleep", grace="0s")
    eventually("digits running", lambda: ENGINE.status("digits").phase == "running")
    status = ENGINE.cancel("digits", reason="enough")
    assert status.phase == "failed"
    assert status.reason.endswith("is gone")


def test_cancel_does_not_touch_another_process_that_has_the_pid_by_now() -> None:
    bystander = subprocess.Popen(["sleep", "30"])
    try:
        control._signal(rundir.Holder(bystander.pid, 1), signal.SIGKILL)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_cancels_at_once_both_see_the_end(submit: Submit) -> None:
    submit("running,wait")
    phases: list[str] = []
    both = [threading.Thread(target=lambda: phases.append(ENGINE.cancel("digits", reason="x").phase)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert phases == ["cancelled", "cancelled"]


# Names


def test_a_run_that_is_not_there_is_an_error_with_those_that_are(submit: Submit) -> None:
    with pytest.raises(NotFound, match=r"^no run named digits; there are no runs here$"):
        ENGINE.status("digits")
    submit("succeed").wait(5)
    with pytest.raises(NotFound, match=r"^no run named digit; did you mean digits\?; runs here: digits$"):
        ENGINE.status("digit")


def test_a_name_cannot_lead_out_of_the_runs(submit: Submit) -> None:
    submit("succeed").wait(5)
    for name in ("../runs/digits", "digits/", ".", ""):
        with pytest.raises(NotFound):
            ENGINE.status(name)
