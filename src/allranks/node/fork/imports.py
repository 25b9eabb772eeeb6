"""Whose a module is (the installation's or the user's), and two finders that act on it."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Dict, FrozenSet, Iterable, List, Optional, Sequence

SITE_NAMES = ("site-packages", "dist-packages")
FROZEN = ("zipimport",)
MOST_RECORDED = 20_000


def _stdlib() -> FrozenSet[str]:
    paths = sysconfig.get_paths()
    roots = {os.path.realpath(paths[key]) for key in ("stdlib", "platstdlib")}
    return frozenset(roots | {os.path.join(root, "lib-dynload") for root in roots})


class Installed:
    """Tells modules of the interpreter's installation from the user's own. Answers are kept by top-level name.

    A module is the installation's if it was found in the standard library or anywhere below a folder called
    site-packages or dist-packages (setuptools brings a folder of its own there): a virtual environment inside the
    job's folder is not the job's. What was found in one of ``users``, the job's own entries of ``sys.path``, is the
    user's wherever that is; so is a checkout that a .pth file names.
    """

    def __init__(self, users: Iterable[str]) -> None:
        self.users = frozenset(os.path.realpath(folder) for folder in users)
        self._stdlib = _stdlib()
        self._known: Dict[str, Optional[bool]] = {}

    def owns(self, name: str) -> Optional[bool]:
        """Return True or False, or None when no module of that name is found on ``sys.path``."""
        top = name.partition(".")[0]
        if top not in self._known:
            self._known[top] = self._look(top)
        return self._known[top]

    def _look(self, top: str) -> Optional[bool]:
        if top in sys.builtin_module_names or top in FROZEN:
            return True
        spec = PathFinder.find_spec(top)
        return None if spec is None else all(self._is_installation(folder) for folder in _found_in(spec))

    def _is_installation(self, folder: str) -> bool:
        real = os.path.realpath(folder)
        if real in self.users and os.path.basename(folder) not in SITE_NAMES:
            return False
        return real in self._stdlib or any(part in SITE_NAMES for part in folder.split(os.sep))


def _found_in(spec: ModuleSpec) -> List[str]:
    """List the ``sys.path`` entries that a top-level module comes from; several for a namespace package."""
    if spec.submodule_search_locations is not None:
        return [os.path.dirname(os.path.abspath(place)) for place in spec.submodule_search_locations]
    return [os.path.dirname(os.path.abspath(spec.origin or ""))]


class UserModule(ImportError):
    """The zygote must not run the user's own code, or it would run once instead of once a rank."""


class Guard:
    """First on ``sys.meta_path`` while the zygote imports: refuses the user's own modules, remembers which."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed
        self.refused: List[str] = []

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if path is None and self._installed.owns(name) is False:
            self.refused.append(name)
            raise UserModule(f"{name} is not of the installation", name=name)
        return None


class Recorder:
    """First on a rank's ``sys.meta_path``: appends to a file each name that is looked for, finds nothing itself.

    The file is opened anew for every name: no descriptor of ours stays in the rank, and every line survives
    kill -9. Names of the user's own modules are not written; neither are those of forked children.
    """

    def __init__(self, path: str, installed: Installed) -> None:
        self._path = path
        self._pid = os.getpid()
        self._left = MOST_RECORDED
        self._installed = installed

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if self._left > 0 and os.getpid() == self._pid and self._installed.owns(name):
            self._left -= 1
            self._append(name)
        return None

    def _append(self, name: str) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                os.write(file, os.fsencode(name) + b"\n")
            finally:
                os.close(file)
        except (OSError, UnicodeError):
            self._left = 0  # a full or vanished disk must not cost the rank anything more


def import_installed(name: str, installed: Installed) -> str:
    """Import a module of the installation: ``a.b``, or ``a:b`` as ``from a import b`` would. Returns what went wrong.

    A name that is the user's or that is not found is left for the rank to import, silently: that is no error here.
    """
    module, _, member = name.partition(":")
    if not installed.owns(module):
        return ""
    try:
        if not member:
            importlib.import_module(module)
        elif module not in sys.modules or not hasattr(sys.modules[module], member):
            importlib.import_module(f"{module}.{member}")
    except ModuleNotFoundError as error:
        wanted = module if not member else f"{module}.{member}"
        return "" if error.name == wanted else f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001  a module may raise anything, SystemExit included
        return f"{type(error).__name__}: {error}"
    return ""


def cuda_is_initialised() -> bool:
    """Whether ``cuInit`` ran in this process: then no forked child can use CUDA.

    Asks the driver if it is mapped already, and loads or initialises nothing. torch's own ``is_initialized`` and
    ``_is_in_bad_fork`` do not see a foreign cuInit, pinned memory or a backward pass.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = next((line.split(None, 5)[5].strip() for line in maps if "/libcuda.so" in line), "")
    if not mapped:
        return False
    not_initialised = 3  # CUDA_ERROR_NOT_INITIALIZED
    return bool(ctypes.CDLL(mapped).cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) != not_initialised)
