"""The one image that the cluster itself needs: a process that holds a pod's namespaces and does nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

from tests.cluster.components import PAUSE
from tests.cluster.layout import RUN
from tests.cluster.node_config import PAUSE as NAME


def archive() -> Path:
    """The image as a docker-archive."""
    path = RUN / "pause.tar"
    if not path.exists():
        made = path.with_suffix(".part")
        made.write_bytes(_archive(PAUSE.binary().read_bytes()))
        made.rename(path)
    return path


def _archive(program: bytes) -> bytes:
    layer = _tar({"pause": program}, 0o755)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    return _tar(
        {
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer,
            "manifest.json": json.dumps(manifest).encode(),
        },
        0o644,
    )


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return whole.getvalue()
