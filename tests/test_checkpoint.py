"""Checkpoints: whole or not at all, and the newest complete one is found whatever a kill left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from allranks import checkpoint
from allranks.checkpoint import Incomplete, newest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def deepspeed(folder: Path, step: int, *, ranks: int = 2, stage: int = 2, prefix: str = "") -> Path:
    """The files that DeepSpeed writes, as far as it matters here; bench/checkpoints.py has real ones."""
    path = folder / f"global_step{step}"
    path.mkdir(parents=True)
    state = {"module": {"w": torch.ones(3)}, "dp_world_size": ranks, "mp_world_size": 1}
    state["ds_config"] = {"zero_optimization": {"stage": stage}}
    if stage < 3:
        torch.save(state, path / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        shard = f"zero_pp_rank_{rank}_mp_rank_00"
        if stage == 3:
            torch.save(state, path / f"{shard}_model_states.pt")
        if stage:
            torch.save({"optimizer_state_dict": {}}, path / f"{prefix}{shard}_optim_states.pt")
    (folder / "latest").write_text(path.name)
    return path


def dcp(folder: Path, step: int) -> Path:
    import torch.distributed.checkpoint as dist_checkpoint

    path = folder / f"step-{step}"
    with warnings.catch_warnings():  # torch warns that there is no gang
        warnings.simplefilter("ignore")
        dist_checkpoint.save({"w": torch.ones(1000), "step": step}, checkpoint_id=path, no_dist=True)
    return path


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "log.txt").touch()
    (tmp_path / "notes.txt").touch()
    assert newest(tmp_path) is None
    assert newest(tmp_path / "not there") is None


def test_the_newest_file_goes_by_step_and_torn_ones_are_passed_over_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (9, 10, 11):
        checkpoint.save({"step": step}, tmp_path / f"step-{step}.pt")
    tear(tmp_path / "step-11.pt")
    found = newest(tmp_path)
    assert found == checkpoint.Checkpoint(tmp_path / "step-10.pt", "file", 10)
    assert torch.load(found.path, weights_only=True) == {"step": 10}
    assert capsys.readouterr().err == (
        f"allranks: passed over {tmp_path}/step-11.pt, which is incomplete: "
        "step-11.pt has no end: its writing was cut off\n"
    )


@pytest.mark.parametrize(
    ("stage", "prefix", "shards"), [(0, "", 1), (1, "bf16_", 3), (2, "", 3), (3, "", 4)], ids=["0", "1 bf16", "2", "3"]
)
def test_deepspeed_without_any_one_of_its_files_is_incomplete_whatever_latest_says(
    tmp_path: Path, stage: int, prefix: str, shards: int
) -> None:
    old, new = (deepspeed(tmp_path, step, stage=stage, prefix=prefix) for step in (5, 10))
    found = newest(tmp_path)
    assert found == checkpoint.Checkpoint(new, "deepspeed", 10)
    files = sorted(new.iterdir())
    assert len(files) == shards
    for file in files:
        whole = file.read_bytes()
        for damage in (tear, Path.unlink):
            damage(file)
            found = newest(tmp_path)
            assert found
            assert found.path == old, (file, damage)
            file.write_bytes(whole)
    found = newest(tmp_path)
    assert found
    assert found.path == new


def test_dcp_without_its_metadata_or_with_a_short_file_is_incomplete(tmp_path: Path) -> None:
    old, new = dcp(tmp_path, 1), dcp(tmp_path, 2)
    assert newest(tmp_path) == checkpoint.Checkpoint(new, "dcp", 2)
    assert newest(new) == checkpoint.Checkpoint(new, "dcp", 2)
    data = new / "__0_0.distcp"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    assert newest(tmp_path) == checkpoint.Checkpoint(old, "dcp", 1)
    data.write_bytes(whole)
    (new / ".metadata").unlink()
    assert newest(tmp_path) == checkpoint.Checkpoint(old, "dcp", 1)


def test_only_incomplete_ones_are_an_error_or_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = deepspeed(tmp_path, 10)
    (path / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    (tmp_path / "global_step20").mkdir()
    (tmp_path / ".step-3.pt.0.new").touch()
    with pytest.raises(Incomplete) as caught:
        newest(tmp_path)
    assert str(caught.value).splitlines() == [
        f"no checkpoint in {tmp_path} is complete; delete them to start from the beginning, "
        "or call newest(..., start_over=True)",
        f"  {tmp_path}/global_step20: it is empty",
        f"  {path}: zero_pp_rank_1_mp_rank_00_optim_states.pt is missing",
        f"  {tmp_path}/.step-3.pt.0.new: a kill ended its writing",
    ]
    assert newest(tmp_path, start_over=True) is None
    assert "starting from the beginning\n  " in capsys.readouterr().err


def test_looking_at_a_checkpoint_runs_nothing_that_is_in_it(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "was run"),)

    path = deepspeed(tmp_path, 10)
    torch.save({"evil": Evil(), "dp_world_size": 2}, path / "mp_rank_00_model_states.pt")
    assert newest(tmp_path)
    assert not (tmp_path / "was run").exists()


def test_a_full_disk_is_told_with_rank_and_path_and_the_old_one_stays(tmp_path: Path) -> None:
    program = (
        "import sys, torch\nfrom allranks import checkpoint\n"
        "checkpoint.save({'w': torch.ones(10)}, sys.argv[1])\n"
        "try: checkpoint.save({'w': torch.ones(10**6)}, sys.argv[1])\n"
        "except OSError as error: print(type(error).__name__, error.errno, error)\n"
        "print(len(torch.load(checkpoint.newest(sys.argv[2]).path)['w']))\n"
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$1" -c "$2" "$0/step-1.pt" "$0"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, disk, sys.executable, program],
        env={**os.environ, "RANK": "3"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no small disk can be made here: {done.stderr}")
    assert done.stdout.splitlines() == [
        f"DiskFull 28 rank 3 could not save {disk}/step-1.pt: no space left on its disk",
        "10",
    ], done.stderr


KILLS = '''
"""Children save as fast as they can and are killed at random; each goes on from what newest() finds."""
import json, os, random, signal, sys, time
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp
from allranks import checkpoint

weights = torch.ones(200_000)

def save(how, folder, step):
    if how == "dcp":
        dcp.save({"step": torch.tensor(step), "w": weights}, checkpoint_id=folder / f"step-{step}", no_dist=True)
    elif how == "torch.save":
        torch.save({"step": step, "w": weights}, folder / f"step-{step}.pt")
    else:
        checkpoint.save({"step": step, "w": weights}, folder / "the-one.pt")

def resumed(folder):
    found = checkpoint.newest(folder, start_over=True)
    if found is None:
        return 0
    if found.kind == "file":
        return torch.load(found.path)["step"]
    state = {"step": torch.tensor(0), "w": torch.zeros(200_000)}
    dcp.load(state, checkpoint_id=found.path, no_dist=True)
    return int(state["step"])

def go_on_and_be_killed(how, folder, first):
    """Returns the last step that was through."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        for step in range(first + 1, 10**9):
            save(how, folder, step)
            os.write(writing, step.to_bytes(8, "little"))
    os.close(writing)
    os.read(reading, 8)  # the first is through: kill in any later one
    time.sleep(random.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done = first + 1
    while step := os.read(reading, 8):
        done = int.from_bytes(step, "little")
    os.close(reading)
    return done

def try_out(how, kills):
    folder = Path(how)
    folder.mkdir()
    save(how, folder, 0)  # imports what the children would else each import
    done, torn, lost = 0, 0, []
    for _ in range(kills):
        first = resumed(folder)
        if first < done:
            lost.append([first, done])
        done = go_on_and_be_killed(how, folder, first)
        last = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        torn += last.name.startswith(".") or bool(checkpoint._why_incomplete(last))
    return {"lost": lost, "torn": torn, "steps": done}

torch.set_num_threads(1)
print(json.dumps({how: try_out(how, int(kills)) for how, kills in (pair.split("=") for pair in sys.argv[1:])}))
'''


def test_killed_at_fifty_points_it_always_goes_on_from_the_newest_complete_one(tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text(KILLS)
    ways = {"checkpoint.save": 50, "torch.save": 25, "dcp": 25}
    done = subprocess.run(
        [sys.executable, "kills.py", *(f"{how}={kills}" for how, kills in ways.items())],
        cwd=tmp_path, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for how, result in json.loads(done.stdout).items():
        assert result["lost"] == [], how
        assert result["steps"] >= ways[how]
        assert result["torn"] >= 3, f"{how}: no kill came in the midst of a save: nothing was tested"
