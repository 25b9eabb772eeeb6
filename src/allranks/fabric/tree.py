"""The files that tell of a node's network, below a root: this machine's own, or a saved tree of another one.

Every read is bounded, and what cannot be read is an answer too: in a pod the kernel refuses (EINVAL) the attributes
of GIDs that belong to another network namespace. A saved tree has an empty file there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
from typing import Dict, List, Optional, Set

MOST_BYTES = 1 << 20
"""Of one file; what we read is a line or a table of the kernel's."""

MOST_NAMES = 4096
MOST_MEMBERS, MOST_UNPACKED = 100_000, 64 << 20
NAME = re.compile(r"[\w.:+@-]{1,80}", re.ASCII)
NO_ACCESS = "no access"
"""What a saved device node holds when whoever saved it could not open it."""


class NotATree(Exception):
    """There is nothing to read there; the message says what was found and what is needed."""


class Tree:
    """Files below a root. ``refused`` collects, in words, what was there and could not be read or was no name."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.refused: List[str] = []

    def read(self, path: str) -> Optional[str]:
        """The text of a file without the space around it; None when it is missing or cannot be read."""
        raise NotImplementedError

    def read_bytes(self, path: str) -> bytes:
        """A binary file's content; nothing where it is missing or cannot be read, or the tree is an archive."""
        return b""

    def has(self, path: str) -> bool:
        """Whether a file or folder is there."""
        raise NotImplementedError

    def can_open(self, path: str) -> bool:
        """Whether a device node that is there may be opened for reading and writing."""
        raise NotImplementedError

    def _names(self, path: str) -> List[str]:
        raise NotImplementedError

    def names(self, path: str) -> List[str]:
        """What a folder holds, numbers in their order; nothing when there is no such folder."""
        found = self._names(path)
        sound = [name for name in found if NAME.fullmatch(name)]
        if len(sound) < len(found):
            self._refuse(f"/{path} holds {len(found) - len(sound)} names that no kernel gives; left out")
        if len(sound) > MOST_NAMES:
            self._refuse(f"/{path} holds {len(sound)} names; the first {MOST_NAMES} are read")
        return sorted(sound, key=natural)[:MOST_NAMES]

    def _refuse(self, text: str) -> None:
        if text not in self.refused and len(self.refused) < 100:
            self.refused.append(text)

    def _decode(self, path: str, content: bytes) -> str:
        if len(content) > MOST_BYTES:
            self._refuse(f"/{path} is larger than {MOST_BYTES >> 20} MiB; only its beginning is read")
        return content[:MOST_BYTES].decode("utf-8", "replace").strip()


class Folder(Tree):
    """A tree on disk. Links are followed as far as they stay below the root."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._real = os.path.realpath(root)

    def _path(self, path: str) -> Optional[str]:
        if self._real == "/":
            return f"/{path}"
        real = os.path.realpath(os.path.join(self._real, path))
        return real if real == self._real or real.startswith(self._real + "/") else None

    def read(self, path: str) -> Optional[str]:
        real = self._path(path)
        if real is None:
            return None
        try:
            # A FIFO in somebody's tree must not hold us up, and a device is none of our business.
            descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._say_why(path, error)
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return self._decode(path, _read_all(descriptor, MOST_BYTES + 1))
        except OSError as error:
            self._say_why(path, error)
            return None
        finally:
            os.close(descriptor)

    def read_bytes(self, path: str) -> bytes:
        real = self._path(path)
        try:
            if real is None or not os.path.isfile(real):
                return b""
            with open(real, "rb") as file:
                return file.read(MOST_BYTES)
        except OSError:
            return b""

    def _say_why(self, path: str, error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.EOPNOTSUPP):
            self._refuse(f"/{path} cannot be read: {error.strerror}")

    def has(self, path: str) -> bool:
        real = self._path(path)
        return real is not None and os.path.exists(real)

    def can_open(self, path: str) -> bool:
        real = self._path(path)
        if real is None or not os.path.exists(real):
            return False
        if os.path.isfile(real):
            return self.read(path) != NO_ACCESS
        return os.access(real, os.R_OK | os.W_OK)

    def _names(self, path: str) -> List[str]:
        real = self._path(path)
        try:
            return os.listdir(real) if real is not None else []
        except OSError as error:
            self._say_why(path, error)
            return []


class Archive(Tree):
    """A tree in a tar file, held in memory: nothing is unpacked, and links are passed over."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._files: Dict[str, bytes] = {}
        self._folders: Dict[str, Set[str]] = {}
        try:
            with tarfile.open(path, "r:*") as tar:
                self._load(tar)
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            why = (
                (str(error) or type(error).__name__).splitlines()[0].rstrip(":")
            )  # tarfile says what it tried, on lines
            raise NotATree(f"{path} cannot be read as a tar file: {why}") from error

    def _load(self, tar: tarfile.TarFile) -> None:
        total = 0
        for count, member in enumerate(tar):
            total += max(0, member.size)
            if count >= MOST_MEMBERS or total > MOST_UNPACKED:
                raise ValueError("it is far larger than what allranks fabric --save makes")
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if ".." in parts:
                raise ValueError(f"it has a member outside of itself: {member.name!r}")
            for depth in range(len(parts)):
                self._folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
            if member.isdir():
                self._folders.setdefault("/".join(parts), set())
            file = tar.extractfile(member) if member.isreg() else None
            if file is not None:
                self._files["/".join(parts)] = file.read(MOST_BYTES + 1)

    def read(self, path: str) -> Optional[str]:
        content = self._files.get(path)
        return self._decode(path, content) if content is not None else None

    def has(self, path: str) -> bool:
        return path in self._files or path in self._folders

    def can_open(self, path: str) -> bool:
        return path in self._files and self.read(path) != NO_ACCESS

    def _names(self, path: str) -> List[str]:
        return list(self._folders.get(path, ()))


def open_tree(root: str) -> Tree:
    """The tree of that folder or tar file. Raises NotATree."""
    if os.path.isdir(root):
        tree: Tree = Folder(root)
    elif os.path.isfile(root):
        tree = Archive(root)
    else:
        found = "is neither a folder nor a file" if os.path.lexists(root) else "does not exist"
        raise NotATree(f"{root} {found}; a tree is a folder, or a .tar.gz that allranks fabric --save made")
    if root != "/" and not tree.has("sys/class"):  # some sandboxes have none of their own
        raise NotATree(f"{root} has no sys/class; a tree holds sys/, and dev/, etc/, proc/ as far as saved")
    return tree


def natural(name: str) -> List[object]:
    """A key that sorts mlx5_2 before mlx5_10."""
    return [int(part) if part.isdigit() and part.isascii() else part for part in re.split(r"([0-9]+)", name)]


def _read_all(descriptor: int, most: int) -> bytes:
    content = b""
    while len(content) < most:
        piece = os.read(descriptor, most - len(content))
        if not piece:
            break
        content += piece
    return content
