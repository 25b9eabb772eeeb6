"""Images as files that `ctr images import` reads: one layer, reproducible, no registry and no docker."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
Config = Mapping[str, object]  # of the image specification: Env, Cmd, Entrypoint, WorkingDir, User


class Layer:
    """A tar in the making; times are 0, so that the same content has the same digest."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def folder(self, name: str, mode: int = 0o755) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(entry)

    def link(self, name: str, to: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, to
        self._tar.addfile(entry)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        entry = tarfile.TarInfo(name)
        entry.mode, entry.size = mode, len(content)
        self._tar.addfile(entry, io.BytesIO(content))

    def tree(self, root: Path, without: Iterable[str] = ()) -> None:
        """Everything below ``root`` with its modes and owners, but nothing of ``without`` (names at its top)."""
        skip = set(without)
        for top in sorted(path for path in root.iterdir() if path.name not in skip):
            self._tar.add(top, top.name, filter=_timeless)

    def content(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def _timeless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = 0
    return entry


def write(path: Path, layer: bytes, images: Mapping[str, Config]) -> None:
    """A docker-archive at ``path``: all ``images`` (name to configuration) share the one layer."""
    digest = hashlib.sha256(layer).hexdigest()
    files = {f"{digest}.tar": layer}
    manifest: list[dict[str, Sequence[str] | str]] = []
    for name, config in images.items():
        content = _config(digest, config)
        at = f"{hashlib.sha256(content).hexdigest()}.json"
        files[at] = content
        manifest.append({"Config": at, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    making = path.with_suffix(".making")
    with tarfile.open(making, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    making.rename(path)


def _config(digest: str, config: Config) -> bytes:
    described = {
        "architecture": MACHINES[platform.machine()],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "tests/cluster/images"}],
    }
    return json.dumps(described).encode()
