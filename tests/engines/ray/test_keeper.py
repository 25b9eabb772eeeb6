"""What a keeper gives a cluster of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.engines.ray import keeper
from allranks.engines.ray.keeper import Keeper, roomy, short, with_token
from allranks.engines.ray.rundir import RunDir
from allranks.errors import EngineError
from allranks.node import processes


def test_rays_sockets_find_room_below_whatever_folder_is_for_temporary_files() -> None:
    added = "/allranks-ray-l1g8dxh_/session_2026-11-29_10-14-11_229982_4194304/sockets/plasma_store"
    for folder in ("/tmp", "/scratch/job.1234567", "/scratch/somebody/job.1234567", "/t" * 60):
        assert len(short(folder) + added) <= 107
    assert short("/scratch/job.1234567") == "/scratch/job.1234567"


def test_each_cluster_has_a_token_of_its_own_where_the_user_has_named_none() -> None:
    assert with_token({"A": "b"}) != with_token({"A": "b"})
    assert with_token({"RAY_AUTH_TOKEN": "theirs"}) == {"RAY_AUTH_TOKEN": "theirs"}


def test_a_full_disk_is_told_and_not_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(
        EngineError, match=r"^/tmp, the folder for temporary files, has 3 MiB free, and a Ray cluster needs"
    ):
        roomy("/tmp")


def test_a_full_disk_costs_lines_and_no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "become_subreaper", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    gang = {"nodes": 1, "ranks_per_node": 1, "restarts": 1, "log_limit": 10**6}
    config = {"applications": [{"args": {"gang": gang, "replicas": 1}}]}
    run = RunDir(tmp_path)
    run.plan.write_text(json.dumps({"address": "", "config": config}))
    one = Keeper(run, None)
    lines = tmp_path / "lines.jsonl"
    lines.symlink_to("/dev/full")
    state = {"status": one.status.to_json(), "left": [], "lost": 0, "lines": [["a", 0, 0, 0, "x"], ["a", 0, 0, 0, "y"]]}
    one._take(state)
    lines.unlink()
    one._take(state)
    one._take(state)
    ((kept, _),) = run.kept()
    assert [line[4] for line in kept] == ["allranks: 2 lines were not taken in time; they are on Ray's hosts", *"xyxy"]
    monkeypatch.setattr(keeper, "write_whole", lambda *_: os.stat("/proc/nope"))
    one._write()
    (tmp_path / "session_latest" / "logs" / "serve").mkdir(parents=True)
    (tmp_path / "ray").touch()  # stands for what cannot be copied
    one._scratch = str(tmp_path)
    one._save_logs()
