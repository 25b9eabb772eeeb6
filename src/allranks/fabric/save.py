"""Saving a tree: exactly the files that are read to decide, cut to what is needed of them, and nothing else."""

from __future__ import annotations

import io
import os
import re
import tarfile
from typing import Callable, Dict, List, Mapping, Optional, Set

from allranks.fabric.devices import read_host
from allranks.fabric.settings import read_settings
from allranks.fabric.tree import NO_ACCESS, Tree
from allranks.fabric.version import NEWEST, OLDEST, SAVED, find_version, shown

KEPT_VARIABLES = re.compile(r"NCCL_\w+|HOME")
KEPT_LINES = (
    (re.compile(r"(^|/)proc/self/status$"), re.compile(r"CapEff:")),
    (re.compile(r"/device/uevent$"), re.compile(r"PCI_SLOT_NAME=")),
    (re.compile(r"\.conf$"), re.compile(r"NCCL_\w+=")),
)
"""Of which files only some lines are kept, and which: the rest is not asked for, and none of anybody's business."""


class _Recorder(Tree):
    """Passes every question on to another tree, and remembers the answers."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree.root)
        self._tree = tree
        self.files: Dict[str, str] = {}
        self.folders: Set[str] = set()

    def read(self, path: str) -> Optional[str]:
        text = self._tree.read(path)
        if text is not None:
            self.files[path] = _cut(path, text)
        elif self._tree.has(path):
            self.files[path] = ""  # it is there, and the kernel refuses it
        return text

    def has(self, path: str) -> bool:
        found = self._tree.has(path)
        if found and path not in self.files:
            self.folders.add(path)
        return found

    def can_open(self, path: str) -> bool:
        found = self._tree.can_open(path)
        self.files[path] = "" if found else NO_ACCESS
        return found

    def _names(self, path: str) -> List[str]:
        found = self._tree.names(path)
        if found or self._tree.has(path):
            self.folders.update([path, *(f"{path}/{name}" for name in found)])
        return found


def save(tree: Tree, target: str, env: Mapping[str, str], python: str = "") -> int:
    """Write what ``look`` reads of the tree into a .tar.gz; returns the number of files. Raises OSError."""
    recorder = _Recorder(tree)
    read_host(recorder)
    for version in (OLDEST, NEWEST):
        read_settings(recorder, env, version)
    kept = {name: value for name, value in env.items() if KEPT_VARIABLES.fullmatch(name)}
    recorder.files["proc/self/environ"] = "\0".join(f"{name}={value}" for name, value in sorted(kept.items()))
    found = find_version(tree, python, env)
    if found:
        recorder.files[SAVED] = shown(found)
    partial = f"{target}.{os.getpid()}"
    try:
        with tarfile.open(partial, "w:gz") as tar:
            _write(tar, recorder)
        os.replace(partial, target)
    finally:
        if os.path.lexists(partial):
            os.unlink(partial)
    return len(recorder.files)


def _write(tar: tarfile.TarFile, recorder: _Recorder) -> None:
    for folder in sorted(recorder.folders - set(recorder.files)):
        info = tarfile.TarInfo(folder)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    for path, text in sorted(recorder.files.items()):
        content = (text + "\n" if text else "").encode("utf-8", "surrogateescape")
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(content), 0o644
        tar.addfile(info, io.BytesIO(content))


def _cut(path: str, text: str) -> str:
    for file, line in KEPT_LINES:
        if file.search(path):
            return _lines(text, line.match)
    return text


def _lines(text: str, keep: Callable[[str], object]) -> str:
    return "\n".join(line for line in text.splitlines() if keep(line))
