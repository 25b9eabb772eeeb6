"""Compiled code of modules that have no .pyc beside them, kept for the zygote's next start.

Where bytecode is not written (``PYTHONDONTWRITEBYTECODE`` in many images, a read-only installation), python compiles
torch and DeepSpeed from source each time, which is most of what their import takes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import shutil
import struct
import sys
import time
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any, Callable, Iterator, Optional

from allranks.node.files import write_whole

UNUSED = 30 * 24 * 3600.0  # seconds after which an installation's code is dropped

GetCode = Callable[[SourceFileLoader, str], Any]


class Bytecode:
    """Code objects of one installation below ``directory``, each good for one time and size of its source.

    What cannot be read is compiled as ever; after a failed write nothing more is written.
    """

    def __init__(self, directory: str) -> None:
        about = f"{sys.prefix}\0{importlib.util.MAGIC_NUMBER!r}\0{sys.flags.optimize}"
        self._folder = os.path.join(directory, hashlib.sha256(about.encode()).hexdigest()[:24])
        self._writable = _open(directory, self._folder)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let imports from source files look here first."""
        ordinary: GetCode = SourceFileLoader.get_code
        setattr(SourceFileLoader, "get_code", lambda loader, name: self._get(loader, name, ordinary))  # noqa: B010
        try:
            yield
        finally:
            del SourceFileLoader.get_code  # and the one that it inherits is back

    def _get(self, loader: SourceFileLoader, name: str, ordinary: GetCode) -> Any:
        source = loader.path
        try:
            beside = importlib.util.cache_from_source(source)
            about = os.stat(source)
        except (OSError, NotImplementedError):
            return ordinary(loader, name)
        if os.path.exists(beside):
            return ordinary(loader, name)
        path = os.path.join(self._folder, hashlib.sha256(os.fsencode(source)).hexdigest()[:32])
        header = struct.pack("<qq", about.st_mtime_ns, about.st_size)
        code = _read(path, header)
        if code is None:
            code = ordinary(loader, name)
            if self._writable and not os.path.exists(beside):
                self._write(path, header + marshal.dumps(code))
        return code

    def _write(self, path: str, content: bytes) -> None:
        try:
            write_whole(path, content, mode=0o600)
        except OSError:
            self._writable = False


def _read(path: str, header: bytes) -> Optional[CodeType]:
    try:
        with open(path, "rb") as file:
            content = file.read()
        code = marshal.loads(content[len(header) :]) if content.startswith(header) else None
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def _open(directory: str, folder: str) -> bool:
    """Make the folder, or note that it is used; a new one is the moment to drop those that nobody used for long."""
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700)
            for entry in os.scandir(directory):
                if entry.stat().st_mtime < time.time() - UNUSED:
                    shutil.rmtree(entry.path, ignore_errors=True)
        os.utime(folder)
    except OSError:
        return False
    return True
