"""Run:ai's old command line: the container makes the agent of variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.runai import command_line
from tests.engines.kubernetes.jobs import job, plan


@pytest.mark.gang
def test_a_container_of_version_1_makes_the_agent_of_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "STATE", str(tmp_path))
    run = ["sh", "-c", "env | grep -c ^ALLRANKS_AGENT; exit 0"]
    text = json.dumps({"kind": "Job", "name": "old", "image": "a", "run": run})
    secret, submit = plan("runai", job(text), Cluster(runai=1)).documents
    values = {**secret["stringData"], "secret": "ab" * 32}
    told = [word for word in submit["argv"] if "=SECRET:old-allranks," in word]
    filled = {word.partition("=")[0]: values[word.partition(",")[2]] for word in told}
    assert all(len(value) < 128 * 1024 for value in filled.values())
    place = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    command = submit["argv"][submit["argv"].index("--") + 1 :]
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=tmp_path, timeout=60, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "TMPDIR": f"{tmp_path}/tmp", **place, **filled},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 rank 0 | 0\n" in done.stdout
