"""The launcher's pod of the classic shape: which mpirun it has, what it tells it, and what it waits for before."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from allranks.node.launch import over_ssh

SAYS = {
    "openmpi4": "mpirun (Open MPI) 4.1.4",
    "openmpi5": "mpirun (Open MPI) 5.0.7",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13",
    "mpich": "HYDRA build details:\n    Version: 4.0.2",
}


@pytest.mark.parametrize("kind", SAYS)
def test_the_mpi_is_known_by_what_mpirun_says(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SAYS[kind]}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert over_ssh.implementation() == kind


def test_an_image_without_mpirun_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"^no mpirun in PATH"):
        over_ssh.implementation()


@pytest.mark.parametrize("kind", SAYS)
def test_mpirun_starts_one_agent_a_node_and_is_named_its_hostfile(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/bin:/bin")
    argv, env = over_ssh.command(kind, "/s/hostfile", 3, "g-worker-0.g")
    line = " ".join(argv)
    assert argv[-2:] == ["init", argv[-1]]
    assert argv[-1].endswith("/plan.json")
    assert ("--hostfile /s/hostfile" in line) == kind.startswith("openmpi")
    assert ("-f /s/hostfile" in line) == (kind in ("intel", "mpich"))
    assert ("--map-by ppr:1:node" in line) or ("-ppn 1" in line)
    assert "ServerAliveInterval=2" in line + env.get("PRTE_MCA_plm_ssh_args", "") + env.get(
        "HYDRA_LAUNCH_EXTRA_ARGS", ""
    )
    assert env["ALLRANKS_COORDINATOR"] == "g-worker-0.g"
    assert "-x ALLRANKS_COORDINATOR -x PATH" in line or "-genvlist ALLRANKS_COORDINATOR,PATH" in line
    assert ("oob_tcp_keepalive_time" in line) == (kind == "openmpi4")


def test_hosts_are_awaited_until_the_last_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        late = socket.socket()
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        late.bind(("127.0.0.2", port))
        with late:
            opening = threading.Timer(0.7, late.listen)
            opening.start()
            began = time.monotonic()
            over_ssh.await_hosts(["127.0.0.1", "127.0.0.2"], port, 30)
            opening.join()
            assert time.monotonic() - began > 0.5


def test_a_name_that_nobody_knows_is_told_when_time_is_up() -> None:
    with pytest.raises(OSError, match=r"^waiting for 1 of 1 nodes: no-such-node\.invalid: .*, for 0\.1 s$"):
        over_ssh.await_hosts(["no-such-node.invalid"], 22, 0.1)
