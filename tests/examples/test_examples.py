"""Every example, run as its README says."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.commands import Example, allranks, copy_of, finish, wait_for

pytestmark = [pytest.mark.gang, pytest.mark.torch]


@pytest.fixture
def digits(tmp_path: Path) -> Iterator[Example]:
    example = copy_of("digits", tmp_path)
    yield example
    example.cancel()


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Example]:
    example = copy_of("restart", tmp_path)
    yield example
    example.cancel()


def test_digits_trains_to_95_percent_on_what_it_has_not_seen(digits: Example) -> None:
    output = digits.run()
    assert accuracy(output) >= 0.95
    assert losses(output)[-1] < losses(output)[0] / 10
    assert [path.name for path in (digits.out / "digits").iterdir()] == ["model.pt"]


def test_digits_goes_on_from_its_last_complete_epoch_when_a_rank_is_killed(digits: Example) -> None:
    digits.run("--detach")
    checkpoints = digits.out / "digits" / "checkpoints"
    wait_for("the second checkpoint, after the first is complete", lambda: any(checkpoints.glob("epoch-[1-9]")))
    os.kill(digits.pids()[2], signal.SIGKILL)
    wait_for("the end of the run", lambda: digits.status()["phase"] == "succeeded")

    first, second = digits.logs("--attempt", "0"), digits.logs("--attempt", "1")
    resumed = re.search(r"resumed after epoch (\d+)", second)
    assert resumed, second
    assert len(losses(first)) <= int(resumed[1]) <= len(losses(first)) + 1
    assert accuracy(second) >= 0.95
    (cause,) = digits.status()["causes"]
    assert (cause["rank"], cause["node"], cause["signal"]) == (2, 1, "SIGKILL")


def test_pi_on_forty_ranks_leaves_one_file_a_run(tmp_path: Path) -> None:
    pi = copy_of("pi", tmp_path)
    for runs in (1, 2):
        assert "40 ranks" in pi.run()
        files = list(pi.out.iterdir())
        assert len(files) == runs
        assert all(abs(value(path) - math.pi) < 1e-9 for path in files)


def test_restart_goes_on_from_its_checkpoint_when_a_rank_is_killed(restart: Example) -> None:
    restart.run("--detach")
    wait_for("the first checkpoint", (restart.out / "restart" / "checkpoint.pt").exists)
    os.kill(restart.pids()[0], signal.SIGKILL)
    wait_for("attempt 1", lambda: restart.status()["attempt"] == 1 and restart.status()["phase"] == "running")
    wait_for("steps after the restart", lambda: "step" in restart.logs("--attempt", "1").replace("after step", ""))
    assert re.search(r"resumed after step \d+", restart.logs("--attempt", "1"))


def test_interactive_tries_one_rate_after_another_on_the_same_gang(tmp_path: Path) -> None:
    example = copy_of("interactive", tmp_path)
    try:
        finish([*allranks(), "up", "job.yaml"], example.folder)
        pids = set()
        for rate, code in (("0.1", 0), ("3", 3), ("0.5", 0)):
            done = subprocess.run(
                [*allranks(), "exec", "interactive", "--", "python", "fit.py", "--rate", rate],
                cwd=example.folder, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == code, done.stderr
            assert f"rank 0 | rate {rate}: loss " in done.stdout
            pids |= set(example.pids().values())
        assert len(pids) == 12
        status = example.status()
        assert (status["phase"], [c["exit_code"] for c in status["commands"]]) == ("idle", [0, 3, 0])
        assert status["notes"] == [], "all were forked"
    finally:
        example.cancel()


@pytest.mark.parametrize(
    ("name", "command", "last"),
    [
        ("digits", ["train.py", "--epochs", "3"], "model written to out/digits/model.pt"),
        ("pi", ["pi.py"], "written to out/pi-"),
        ("interactive", ["fit.py"], "rate 0.1: loss "),
        ("restart", ["train.py", "--steps", "10", "--pause", "0"], "step 10/10"),
    ],
)
def test_the_same_program_runs_under_torchrun(name: str, command: list[str], last: str, tmp_path: Path) -> None:
    assert last in copy_of(name, tmp_path).torchrun(2, *command)


def accuracy(output: str) -> float:
    found = re.search(r"held-out accuracy (0\.\d+|1\.0+) ", output)
    assert found, output
    return float(found[1])


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d+/\d+: loss (\S+)", output)]


def value(path: Path) -> float:
    found = re.match(r"pi = (\S+),", path.read_text())
    assert found, path.read_text()
    return float(found[1])


def test_tinylm_learns_and_leaves_a_model_that_can_be_served(tmp_path: Path) -> None:
    from allranks.serving.folder import choose, look

    tinylm = copy_of("tinylm", tmp_path)
    output = finish([*allranks(), "run", "job.yaml", "--", "python", "train.py", "--steps", "25"], tinylm.folder)
    first, *_, last = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", output)]
    assert last < first - 0.5
    assert choose(look(tinylm.out / "model"), 2, "auto")[0] == "transformers"
