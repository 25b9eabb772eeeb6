"""From a job to what the agents read, and what is said of fields that this engine does not honour."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from allranks.engines import honoured
from allranks.engines.local import plan, program
from allranks.engines.local.rundir import runs_home
from allranks.errors import EngineError, SpecError
from allranks.node.environment import clean
from allranks.node.gang import Gang
from allranks.spec.job import Job
from allranks.spec.load import parse_job


def job(**fields: Any) -> Job:
    return Job.model_validate({"name": "digits", "run": ("sh", "-c", "true"), **fields})


def document(tmp_path: Path, **fields: Any) -> dict[str, Any]:
    return plan.plan(job(**fields), tmp_path).documents[0]


def test_the_document_is_the_plan_that_the_agents_read(tmp_path: Path) -> None:
    made = document(tmp_path, nodes=2, ranks_per_node=3, env={"A": "1"}, failure={"restarts": 5, "deadline": "1h"})
    gang = Gang.from_json(json.loads(json.dumps(made)))
    assert (gang.run, gang.nodes, gang.ranks_per_node, gang.world_size) == ("digits", 2, 3, 6)
    assert gang.argv == ("sh", "-c", "true")
    assert (gang.restarts, gang.deadline, gang.grace, gang.hang_timeout) == (5, 3600.0, 30.0, 900.0)
    assert gang.env == {"A": "1"}
    assert gang.addresses == ("127.1.0.1", "127.1.0.2")
    assert gang.state == str(runs_home() / "digits")


def test_every_node_of_a_thousand_has_an_address_of_its_own(tmp_path: Path) -> None:
    addresses = document(tmp_path, nodes=1000)["addresses"]
    assert len(set(addresses)) == 1000
    assert addresses[253:255] == ["127.1.0.254", "127.1.1.1"]


def test_workdir_is_the_folder_of_the_spec_and_a_relative_one_starts_there(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    assert document(tmp_path)["workdir"] == str(tmp_path)
    assert document(tmp_path, workdir="inner")["workdir"] == str(tmp_path / "inner")
    assert document(tmp_path / "inner", workdir=str(tmp_path))["workdir"] == str(tmp_path)


def test_a_workdir_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=f"^workdir does not exist: {tmp_path}/nowhere; engine local starts ranks in a f"
    ):
        document(tmp_path, workdir="nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=f"^workdir is not a folder: {tmp_path}/file; engine local starts ranks in a f"):
        document(tmp_path, workdir="file")


def test_the_kept_spec_means_the_same_wherever_it_is_read(tmp_path: Path) -> None:
    kept = parse_job(plan.plan(job(nodes=2, env={"A": "1"}), tmp_path).spec)
    assert kept == job(nodes=2, env={"A": "1"}, workdir=str(tmp_path))


def test_mpirun_needs_open_mpi_and_sshd_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    message = f"^launcher mpirun: no mpirun in PATH \\({tmp_path}\\); .* apt-get install openmpi-bin openssh-server$"
    with pytest.raises(EngineError, match=message):
        document(tmp_path, launcher="mpirun", env={"PATH": str(tmp_path)})
    (tmp_path / "mpirun").write_text("#!/bin/sh\necho HYDRA build details:\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(EngineError, match=r"mpirun is not Open MPI's: it says 'HYDRA build details:'$"):
        document(tmp_path, launcher="mpirun", env={"PATH": str(tmp_path)})


def test_an_engine_without_mpi_cannot_be_pretended_with_mpirun(tmp_path: Path) -> None:
    allowed = "native, torchrun, deepspeed, once"
    with pytest.raises(SpecError, match=f"^launcher mpirun: engine jobset does not have it; allowed: {allowed}$"):
        plan.plan(job(launcher="mpirun"), tmp_path, "jobset")


def test_options_of_the_pretended_engine_are_no_strangers(tmp_path: Path) -> None:
    mpijob = job(engines={"mpijob": {"start": "mpirun"}})
    assert [note.partition(":")[0] for note in plan.plan(mpijob, tmp_path).notes] == ["engines.mpijob.start"]
    made = plan.plan(mpijob, tmp_path, "mpijob")
    assert made.notes == ()
    assert Gang.from_json(json.loads(json.dumps(made.documents[0]))).pods[0].env["OMPI_COMM_WORLD_SIZE"] == "1"


def test_more_ranks_than_a_machine_can_have_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^1000 nodes x 8 ranks are 8000 processes; engine local runs at most 4096"):
        document(tmp_path, nodes=1000, ranks_per_node=8)


# Notes


FULL = """
kind: Job
name: digits
run: [sh, -c, "true"]
image: acme/train:1
env_from: [secret/token]
resources: {gpus: 2, cpu: 8, memory: 1Gi, shm: 1Gi, gpu_resource: amd.com/gpu, extra: {rdma/rdma: 1}}
network: {rdma: required, annotations: {a: b}}
volumes: [{claim: scratch, path: /scratch}]
schedule:
  namespace: n
  queue: q
  gang: kueue
  priority: high
  tolerations: [{key: k}]
  node_selector: {a: b}
  topology: {required: rack}
failure: {clean: all, ttl: 1h}
engines: {mpijob: {start: mpirun}, runai: {project: p}}
"""


def test_no_field_that_is_not_honoured_is_dropped_in_silence(tmp_path: Path) -> None:
    notes = plan.plan(parse_job(FULL), tmp_path).notes
    told = [note.partition(":")[0] for note in notes if "not used by engine local" in note]
    assert told == [
        "image", "env_from",
        "resources.gpus", "resources.gpu_resource", "resources.cpu", "resources.memory", "resources.shm",
        "resources.extra",
        "network.rdma", "network.annotations", "volumes",
        "schedule.namespace", "schedule.queue", "schedule.gang", "schedule.priority", "schedule.tolerations",
        "schedule.node_selector", "schedule.topology.required",
        "failure.clean", "failure.ttl", "engines.mpijob.start", "engines.runai.project",
    ]  # fmt: skip


def test_a_field_at_its_default_needs_no_note(tmp_path: Path) -> None:
    assert plan.plan(job(network={"rdma": "auto"}, failure={"clean": "running"}), tmp_path).notes == ()


def test_rdma_that_several_nodes_require_or_refuse_is_in_the_plan_without_a_note(tmp_path: Path) -> None:
    made = plan.plan(job(nodes=2, network={"rdma": "required"}), tmp_path)
    assert (made.documents[0]["rdma"], made.notes) == ("required", ())
    assert "rdma" not in plan.plan(job(nodes=2), tmp_path).documents[0]


def beside_the_document() -> list[str]:
    honoured = {
        "kind",
        "name",
        "nodes",
        "ranks_per_node",
        "run",
        "launcher",
        "workdir",
        "env",
        "logs.limit",
        "preflight",
    }
    honoured |= {
        f"failure.{name}" for name in ("restarts", "start_timeout", "hang_timeout", "grace", "deadline", "final")
    }
    return [path for path in _fields(Job, "") if path not in honoured]


def _fields(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from _fields(part, f"{above}{name}.")
        else:
            yield f"{above}{name}"


@pytest.mark.parametrize("path", beside_the_document())
def test_every_field_that_is_not_in_the_document_has_its_reason(path: str) -> None:
    assert honoured.reason(path, plan.WHY_NOT) != "this engine has no such thing"


def test_a_rank_variable_of_the_shell_is_told_and_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    assert plan.plan(job(), tmp_path).notes == (
        "your environment already says who a rank is (OMPI_COMM_WORLD_SIZE=8, RANK=3); "
        "allranks sets its own for each rank",
    )
    identity = {"RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PET_NNODES": "2", "SLURM_PROCID": "1"}
    assert clean({**identity, "HOME": "/", "RANKING": "1"}) == {"HOME": "/", "RANKING": "1"}


# The program


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SpecError, match=r"^no such program: trainer in PATH \(/nowhere\)$"):
        document(tmp_path, run=("trainer",))
    (tmp_path / "trainer").touch()
    with pytest.raises(SpecError, match=r"; did you mean \./trainer\?$"):
        document(tmp_path, run=("trainer",))


def test_a_machine_with_python3_alone_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    with pytest.raises(SpecError, match=r"^no such program: python in PATH \(.*\); did you mean python3\?$"):
        document(tmp_path, run=("python", "-c", "1"))


def test_a_program_of_the_workdir_must_be_executable(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"^no such program: {tmp_path}/start.sh$"):
        document(tmp_path, run=("./start.sh",))
    (tmp_path / "start.sh").write_text("#!/bin/sh\n")
    with pytest.raises(SpecError, match=f"^not executable: {tmp_path}/start.sh; make it so: chmod"):
        document(tmp_path, run=("./start.sh",))
    (tmp_path / "start.sh").chmod(0o755)
    document(tmp_path, run=("./start.sh",))


PYTHON = sys.executable


def test_a_script_that_is_not_there_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    message = f"^no such script: trian.py in {tmp_path}; did you mean train.py\\?$"
    with pytest.raises(SpecError, match=message):
        document(tmp_path, run=(PYTHON, "-u", "-W", "error", "trian.py", "--epochs", "3"))


@pytest.mark.parametrize(
    "words",
    [("-c", "print()"), ("-m", "trainer"), ("-Im", "trainer"), ("-",), ("train.py", "nothing.py"), ("package",)],
)
def test_what_is_no_script_is_not_looked_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").touch()
    document(tmp_path, run=(PYTHON, *words))


def fake_python(folder: Path, script: str) -> str:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return str(python)


def test_a_python_that_is_too_old_is_an_error(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "printf 3.7")
    with pytest.raises(SpecError, match=f"^{python} is Python 3.7 \\({python}\\); ranks need 3.8 or newer$"):
        document(tmp_path, run=(python, "-c", "1"))


def test_a_python_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "echo 'no module named encodings' >&2; exit 1")
    with pytest.raises(SpecError, match=r"is no working Python: no module named encodings$"):
        document(tmp_path, run=(python, "-c", "1"))


# The virtual environment that allranks runs from


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(program, "_has_torch", lambda: True)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_venv_that_allranks_runs_from_comes_first_on_the_ranks_path(venv: Path) -> None:
    env, notes = program.venv_first({"A": "1"}, ["python"])
    assert env == {"A": "1", "PATH": f"{venv}/bin:/usr/bin:/bin"}
    assert notes == [f"PATH: {venv}/bin comes first, where allranks itself runs and torch is installed"]


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_is_left_alone(venv: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "/other")
    assert program.venv_first({}, ["python"]) == ({}, [])


def test_a_path_of_the_spec_a_program_with_a_path_and_a_venv_without_torch_are_left_alone(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program.venv_first({"PATH": "/mine"}, ["python"]) == ({"PATH": "/mine"}, [])
    assert program.venv_first({}, ["/usr/bin/python3"]) == ({}, [])
    monkeypatch.setattr(program, "_has_torch", lambda: False)
    assert program.venv_first({}, ["python"]) == ({}, [])
