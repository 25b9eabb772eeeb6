"""A root file system made from a Containerfile: debootstrap for FROM, chroot for RUN, and no registry."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.cluster.errors import ClusterError
from tests.cluster.images.containerfile import BadContainerfile, Step, copied, variables

PATIENCE = 900  # seconds for one instruction: apt behind a slow mirror
# The first process of namespaces of its own: a daemon that a package starts ends with the instruction.
ALONE = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
CHROOT = 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh -c "$1"'


class CannotBuild(ClusterError):
    """An instruction failed: which, and the last lines of what it said."""


def digest(steps: Sequence[Step], context: Path) -> str:
    """What the root depends on, in 12 characters: its steps and the files that they copy."""
    seen = hashlib.sha256()
    for step in steps:
        seen.update(f"{step.kind} {step.text}\n".encode())
    for path, _ in copied(steps, context):
        seen.update(path.read_bytes())
    return seen.hexdigest()[:12]


def build(steps: Sequence[Step], context: Path, root: Path) -> None:
    """Follow ``steps`` into the new folder ``root``; it appears whole or not at all.

    Raises:
        CannotBuild: no debootstrap, or an instruction that failed.
    """
    making = root.with_name(f"{root.name}.making-{os.getpid()}")
    try:
        for done, step in enumerate(steps):
            _follow(step, context, making, variables(steps[:done], "ARG", "ENV"))
        (making / "etc/resolv.conf").unlink(missing_ok=True)
        making.rename(root)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _follow(step: Step, context: Path, root: Path, known: Mapping[str, str]) -> None:
    if step.kind == "FROM":
        _debootstrap(step.text, root)
    elif step.kind == "RUN":
        _run([*ALONE, "sh", "-c", CHROOT, str(root), step.text], step, known)
    elif step.kind == "COPY":
        for path, place in copied([step], context):
            shutil.copy(path, root / place)
    elif step.kind == "WORKDIR":
        (root / step.text.lstrip("/")).mkdir(parents=True, exist_ok=True)


def _debootstrap(image: str, root: Path) -> None:
    distribution, _, tag = image.partition(":")
    suite = tag.removesuffix("-slim")
    if not suite:
        raise BadContainerfile(f"FROM {image}: found no release, wanted one such as debian:bookworm-slim")
    if not shutil.which("debootstrap"):
        raise CannotBuild("debootstrap is not installed; on Debian and Ubuntu: apt-get install debootstrap")
    root.parent.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", suite, str(root), *_mirror(distribution)]
    _run(command, Step("FROM", image))
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")


def _mirror(distribution: str) -> list[str]:
    """The mirror that this machine's own apt uses, if it is of the same distribution; else debootstrap's default."""
    if release().get("ID") != distribution:
        return []
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(path.read_text() for path in lists if path.is_file())
    found = re.findall(rf"^(?:deb .*?|URIs:\s*)(https?://\S*/{distribution}/?)(?:\s|$)", text, flags=re.M)
    return found[:1]


def release() -> dict[str, str]:
    """/etc/os-release of this machine."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def _run(command: Sequence[str], step: Step, known: Mapping[str, str] = MappingProxyType({})) -> None:
    """``known`` are further variables, beside this machine's own: its way out may need them."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=PATIENCE,
        env={**os.environ, **known},
    )  # fmt: skip
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise CannotBuild(f"{step.kind} {step.text}\nended with {done.returncode}:\n{last}")
