"""The images that pods of the tests use, made on this machine and kept by a hash of what they are made from.

base     what examples/photos/Containerfile says, on this machine's Debian release: python3, sshd and Open MPI, for root
         and for mpiuser. Torch's environment is mounted at /opt/torch and first on PATH, Ray's at /opt/ray.
         It is alpine, too, to the init containers of operators.
examples the same with an example's own files: what `podman build` makes of that Containerfile and the example's folder,
         under the name in its job.yaml. Torch's environment is at /opt/venv.
foreign  another release with Python 3.9 and nothing else: what a user's own image may be.
bare     busybox and no Python.

One step is not followed: instead of having pip fetch 2.5 GB into /opt/venv, this project's own environment is mounted
there. The /usr of all but bare is a link to a folder of this machine that every container has mounted read-only: 1 MB
to import instead of 250, which three nodes feel at every boot.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

from tests.cluster.images import archive, containerfile, ray, root
from tests.cluster.images.containerfile import Step
from tests.cluster.layout import CHECKOUT

HERE = Path(__file__).parent
CLASSIC = CHECKOUT / "examples/photos/Containerfile"
TOOLS = "wget procps iproute2"  # what operators' probes and the tests call in pods
BY_PIP = "/opt/venv"
BASE = "docker.io/allranks/base:test"
FOREIGN = "docker.io/allranks/foreign:test"
BARE = "docker.io/allranks/bare:test"
# What the training operator's init container runs nslookup in unless it is told otherwise.
ALPINE = "docker.io/library/alpine:3.10"

# As alpine's: found if one search domain has the name. busybox's own of today fails unless all of them have it, and its
# shell prefers its own to any other.
NSLOOKUP = b'#!/bin/sh\nexec getent ahosts "$1"\n'

USERLAND = "/.userland"
PATH = "/opt/torch/bin:/opt/ray/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Part of the archives' names: they are made anew when how they are made changes.
PACKED = hashlib.sha256(Path(__file__).read_bytes() + (HERE / "archive.py").read_bytes()).hexdigest()[:6]


class Images(NamedTuple):
    """What a node imports, what every container has mounted read-only and where, and what could not be had."""

    tars: list[Path]
    mounts: dict[str, Path]
    missing: list[str]


def prepare(cache: Path, torch: Path) -> Images:
    """Make what is not in ``cache`` yet; ``torch`` is a virtual environment, Ray's is made if it can be had.

    Raises:
        CannotBuild: the base image cannot be made, and without it no test can run.
    """
    cache.mkdir(parents=True, exist_ok=True)
    base = _classic_root(cache)
    tars = [_bare(cache), _thin(cache, base, _configured({BASE: PATH, ALPINE: f"/opt/stand-in/bin:{PATH}"}))]
    mounts = {_place(base): base / "usr", **_environment("/opt/torch", torch), BY_PIP: torch}
    missing = []
    try:
        foreign = _root(cache, "foreign", containerfile.read(HERE / "foreign/Containerfile", {}), HERE / "foreign")
        tars.append(_thin(cache, foreign, _configured({FOREIGN: "/usr/bin:/bin"})))
        mounts[_place(foreign)] = foreign / "usr"
    except root.CannotBuild as problem:
        missing.append(f"image {FOREIGN}: {problem}")
    try:
        mounts |= _environment("/opt/ray", ray.environment(cache))
    except root.CannotBuild as problem:
        missing.append(str(problem))
    return Images(tars, mounts, missing)


def example(cache: Path, folder: Path, image: str) -> Images:
    """The image of an example under that name and, with ``-nonroot`` behind it, its variant that is not root.

    Raises:
        CannotBuild: its root cannot be made.
    """
    steps, userland = classic(), _classic_root(cache)
    files = {place: path.read_bytes() for path, place in containerfile.copied(steps, folder)}
    images = {
        image: containerfile.configuration(steps),
        f"{image}-nonroot": containerfile.configuration(classic(RUN_AS="1000")),
    }
    return Images([_thin(cache, userland, images, files)], {_place(userland): userland / "usr"}, [])


def classic(**arguments: str) -> list[Step]:
    """The steps of the examples' Containerfile, built on this machine's release."""
    release = f"{root.release()['ID']}:{root.release()['VERSION_CODENAME']}-slim"
    return containerfile.read(CLASSIC, {"BASE": release, "TOOLS": TOOLS, **arguments})


def _classic_root(cache: Path) -> Path:
    """All but what pip fetches, and but an example's own files, which come last."""
    steps = [step for step in classic() if step.kind != "COPY" and not is_pips(step)]
    return _root(cache, "base", steps, CLASSIC.parent)


def is_pips(step: Step) -> bool:
    """Whether it fetches what is mounted here instead."""
    return step.kind == "RUN" and f"{BY_PIP}/bin/pip install" in step.text


def _root(cache: Path, name: str, steps: Sequence[Step], context: Path) -> Path:
    """The unpacked root that these steps make: a folder named after their hash."""
    path = cache / f"{name}-{root.digest(steps, context)}"
    if not path.exists():
        root.build(steps, context, path)
    return path


def _thin(
    cache: Path,
    userland: Path,
    images: Mapping[str, archive.Config],
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """The image of a root whose /usr is mounted: some hundred times smaller, and so is the time to import it."""
    own = hashlib.sha256(repr([images, sorted(files.items())]).encode()).hexdigest()[:6]
    path = cache / f"{userland.name}-{PACKED}-{own}.tar"
    if not path.exists():
        layer = archive.Layer()
        # /root is made anew for its mode: the mounted interpreter may lie below it, and mpiuser must get there.
        layer.tree(userland, without=("usr", "dev", "proc", "sys", "root", "var", "boot"))
        for name in ("dev", "proc", "sys", "root", "var", "var/log", "var/tmp", "var/lib", ".userland"):
            layer.folder(name)
        layer.link("usr", _place(userland).lstrip("/"))
        for name in ("opt/stand-in", "opt/stand-in/bin"):
            layer.folder(name)
        layer.file("opt/stand-in/bin/nslookup", NSLOOKUP, 0o755)
        for name, content in files.items():
            layer.file(name, content)
        archive.write(path, layer.content(), images)
    return path


def _configured(paths: Mapping[str, str]) -> Mapping[str, archive.Config]:
    return {image: {"Env": [f"PATH={path}"], "Cmd": ["/bin/sh"]} for image, path in paths.items()}


def _place(userland: Path) -> str:
    return f"{USERLAND}/{userland.name}/usr"


def _bare(cache: Path) -> Path:
    path = cache / f"bare-{PACKED}.tar"
    if not path.exists():
        busybox, applets = _busybox()
        layer = archive.Layer()
        for name in ("bin", "etc", "dev", "proc", "sys", "tmp"):
            layer.folder(name)
        layer.file("bin/busybox", busybox, 0o755)
        for applet in applets:
            layer.link(f"bin/{applet}", "busybox")
        archive.write(path, layer.content(), _configured({BARE: "/bin"}))
    return path


def _busybox() -> tuple[bytes, Sequence[str]]:
    """The static busybox of this machine's distribution, which is not installed for it, and its applets' names."""
    with TemporaryDirectory() as folder:
        fetch = "apt-get download busybox-static && dpkg-deb -x busybox-static_*.deb ."
        done = subprocess.run(["sh", "-c", fetch], cwd=folder, capture_output=True, text=True, timeout=root.PATIENCE)
        if done.returncode:
            raise root.CannotBuild(f"{fetch}\nended with {done.returncode}:\n{done.stderr}")
        busybox = Path(folder, "bin/busybox")
        listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True, timeout=60)
        return busybox.read_bytes(), [name for name in listed.stdout.split() if name != "busybox"]


def _environment(place: str, environment: Path) -> dict[str, Path]:
    """At a fixed place and at its own, which its scripts name, with the interpreter that it stands on."""
    prefix = (environment / "bin/python").resolve().parents[1]
    # The system's own interpreter is in the image already: the release is the same.
    interpreter = {} if prefix == Path("/usr") else {str(prefix): prefix}
    return {**interpreter, place: environment, str(environment): environment}
