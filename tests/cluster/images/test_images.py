"""What the images hold and what they do not, and the files that they are made from."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.cluster.images import archive, containerfile, kinds, root
from tests.cluster.images.containerfile import Step
from tests.cluster.images.kinds import BARE, BASE
from tests.cluster.namespace import Namespace


def test_arguments_continuations_and_comments_of_a_containerfile_are_followed(tmp_path: Path) -> None:
    file = tmp_path / "Containerfile"
    file.write_text("# why\nARG BASE=debian:a\nFROM ${BASE}\nRUN one \\\n  # and\n  && two\n")
    assert containerfile.read(file, {"BASE": "debian:b"})[1:] == [("FROM", "debian:b"), ("RUN", "one && two")]


def test_where_files_go_and_what_a_container_starts_with_is_as_a_real_build_has_it(tmp_path: Path) -> None:
    file = tmp_path / "Containerfile"
    file.write_text(
        'FROM debian:a\nENV PATH=/bin\nWORKDIR /work\nCOPY *.* ./\nARG RUN_AS=0\nUSER ${RUN_AS}\nCMD ["sh"]\n'
    )
    (tmp_path / "train.py").touch()
    steps = containerfile.read(file, {"RUN_AS": "1000"})
    assert list(containerfile.copied(steps, tmp_path)) == [(tmp_path / "train.py", "work/train.py")]
    assert containerfile.configuration(steps) == {
        "Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/work", "User": "1000",
    }  # fmt: skip


def test_one_step_alone_of_the_examples_containerfile_is_not_followed() -> None:
    assert [step.text.split()[0:3] for step in kinds.classic() if kinds.is_pips(step)] == [["python3", "-m", "venv"]]


def test_an_instruction_that_would_be_passed_over_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "Containerfile"
    file.write_text("FROM debian:a\nHEALTHCHECK true\n")
    with pytest.raises(containerfile.BadContainerfile, match="found HEALTHCHECK, allowed are ARG"):
        containerfile.read(file, {})


def test_a_root_has_another_name_when_a_file_that_it_copies_changes(tmp_path: Path) -> None:
    steps = [Step("COPY", "config /etc/config")]
    (tmp_path / "config").write_text("one")
    before = root.digest(steps, tmp_path)
    assert root.digest(steps, tmp_path) == before
    (tmp_path / "config").write_text("two")
    assert root.digest(steps, tmp_path) != before


def test_an_archive_is_the_same_whenever_it_is_made(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        layer = archive.Layer()
        layer.folder("etc")
        layer.file("etc/name", b"x")
        archive.write(tmp_path / name, layer.content(), {"image:1": {}})
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "a") as tar:
        assert "manifest.json" in tar.getnames()


@pytest.mark.parametrize(
    ("image", "has", "lacks"),
    [
        (BASE, ["python", "torchrun", "deepspeed", "mpirun", "/usr/sbin/sshd"], []),
        (BARE, ["sh"], ["python3", "python"]),
    ],
)
def test_an_image_has_what_it_is_for_and_not_more(
    image: str, has: list[str], lacks: list[str], namespace: Namespace
) -> None:
    script = f"for it in {' '.join(has + lacks)}; do command -v $it >/dev/null && echo HAS $it; done; echo DONE"
    namespace.kubectl("run", "look", f"--image={image}", "--restart=Never", "--command", "--", "sh", "-c", script)
    assert namespace.await_said("DONE").split() == [word for it in has for word in ("HAS", it)] + ["DONE"]


def test_the_foreign_image_has_the_agents_python_and_knows_nothing_of_gangs(foreign: str, namespace: Namespace) -> None:
    program = "import sys, shutil; print(sys.version_info[:2] < (3, 10), *map(shutil.which, sys.argv[1:]), 'DONE')"
    command = ["--command", "--", "python3", "-c", program, "mpirun", "/usr/sbin/sshd", "torchrun", "gcc"]
    namespace.kubectl("run", "look", f"--image={foreign}", "--restart=Never", *command)
    assert namespace.await_said("DONE").strip() == "True None None None None DONE"
