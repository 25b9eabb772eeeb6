"""What the zygote imports before it forks: what the script says it imports, and what its ranks were seen to import."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from allranks.node.files import write_whole
from allranks.node.fork.pycommand import PyCommand, parse

# Read by the interpreter, the loader or some import (found with an LD_PRELOAD getenv logger and a hooked os.environ).
READ_AT_IMPORT = re.compile(
    r"PYTHON|LD_|MALLOC_|GLIBC_|LC_|LANG$|OMP_|KMP_|GOMP_|OPENBLAS_|GOTO_|MKL|DNNL_|ONEDNN_|NPY_|NUMEXPR_|KINETO_|OPENSSL_"
    r"|TORCH|PYTORCH_|AOT|INDUCTOR_|PARTITIONER_|PT2_|TRITON_|CUTLASS_|CUBLAS|DS_|DEEPSPEED_|HF_|HUGGINGFACE_"
    r"|TRANSFORMERS_|USE_|JOBLIB_|SCIPY_|SKLEARN_"
)
# Exceptions: read at run time, or as long as nobody has used them.
READ_LATE = re.compile(
    r"TORCHELASTIC_|TORCH_NCCL_|TORCH_FR_|TORCH_GLOO_|PYTORCH_(CUDA_)?ALLOC_CONF$|TORCHINDUCTOR_CACHE_DIR$"
    r"|TRITON_CACHE_DIR$|CUBLAS_WORKSPACE_CONFIG$"
)
# Exceptions for the environment that a rank starts with, because rank.py sees to them after the fork.
SET_BY_US = re.compile(r"OMP_NUM_THREADS$|TORCH_DISTRIBUTED_DEBUG$|PYTHONUNBUFFERED$")

MOST_FILES = 200  # of the user's own modules that are read
MOST_BYTES = 1 << 20  # of one of them
MOST_NAMES = 5_000  # in a learned list
LONGEST_NAME = 200


def read_at_import(name: str) -> bool:
    """Whether setting this variable after the imports comes too late."""
    return READ_AT_IMPORT.match(name) is not None and READ_LATE.match(name) is None


def frozen_differences(zygote: Mapping[str, str], rank: Mapping[str, str]) -> List[str]:
    """Variables by which a rank's environment differs from the zygote's too late for a forked rank."""
    differing = {name for name in set(zygote) | set(rank) if zygote.get(name) != rank.get(name)}
    return sorted(name for name in differing if read_at_import(name) and not SET_BY_US.match(name))


# ------------------------------------------------------------------------------------------ what the script says


@dataclass
class Scan:
    """Names of modules that a script (with the user's own modules that it imports) imports; ``why`` not to fork it."""

    names: List[str] = field(default_factory=list)
    why: str = ""
    files: Dict[str, int] = field(default_factory=dict)

    def is_stale(self) -> bool:
        """Whether one of the files that were read has changed since."""
        return any(_changed(path) != changed for path, changed in self.files.items())


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def scan(command: PyCommand, cwd: str, env: Mapping[str, str]) -> Scan:
    """Read the source of what ``command`` runs. What cannot be read or parsed yields nothing: python will say so."""
    result = Scan()
    roots = [root for root in [command.path0(cwd, env), *pythonpath(env, cwd)] if root]
    waiting = _sources(command, cwd, roots)
    while waiting and len(result.files) < MOST_FILES:
        path, package = waiting.pop(0)
        if path in result.files:
            continue
        result.files[path] = _changed(path)
        tree = _parse(path)
        if tree is None:
            continue
        for name in _imported(tree, package):
            own = [found for root in roots for found in _own(name, root)]
            waiting += own
            if not own and name not in result.names and not name.startswith("__"):
                result.names.append(name)
        result.why = result.why or _reason(tree, path)
    return result


def pythonpath(env: Mapping[str, str], cwd: str) -> List[str]:
    """List the entries of PYTHONPATH as absolute paths."""
    return [os.path.join(cwd, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _sources(command: PyCommand, cwd: str, roots: List[str]) -> List[Tuple[str, str]]:
    """Where the program starts: (file, package it belongs to)."""
    if command.kind == "script":
        return [(os.path.join(cwd, command.target), "")]
    if command.kind == "directory":
        return [(os.path.join(cwd, command.target, "__main__.py"), "")]
    own = [found for root in roots for found in _own(command.target, root)]
    return own + [found for root in roots for found in _own(command.target + ".__main__", root)]


def _own(name: str, root: str) -> Iterator[Tuple[str, str]]:
    """Files under ``root`` that importing ``name`` runs, each with its package: pkg/__init__.py, pkg/mod.py."""
    parts = name.replace(":", ".").split(".")
    for count in range(1, len(parts) + 1):
        base = os.path.join(root, *parts[:count])
        init = os.path.join(base, "__init__.py")
        if os.path.isfile(init):
            yield init, ".".join(parts[:count])
        elif os.path.isfile(base + ".py"):
            yield base + ".py", ".".join(parts[: count - 1])


def _parse(path: str) -> Optional[ast.Module]:
    try:
        if os.path.getsize(path) > MOST_BYTES:
            return None
        with open(path, "rb") as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Names in import statements, also those inside functions; ``from a import b`` yields a and a:b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base:
                yield base
                yield from (f"{base}:{alias.name}" for alias in node.names if alias.name != "*")


def _absolute(module: str, level: int, package: str) -> str:
    if not level:
        return module
    parents = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*parents, module] if module else parents)


def _reason(tree: ast.Module, path: str) -> str:
    """Why a forked rank would not be what the script asks for, or nothing."""
    for node in ast.walk(tree):
        for name in _variables(node):
            if name is None:
                return f"{_at(path, node)} sets environment variables whose names are known only when it runs"
            if read_at_import(name):
                return f"{_at(path, node)} sets {name}, which is read when modules are imported"
        if _replaces_itself(node):
            return f"{_at(path, node)} replaces its own process (os.exec*)"
        if _reorders_path(node):
            return f"{_at(path, node)} changes the front of sys.path, so it may import other modules of the same name"
    return ""


def _at(path: str, node: ast.AST) -> str:
    return f"{os.path.basename(path)}:{getattr(node, 'lineno', 0)}"


def _variables(node: ast.AST) -> Iterator[Optional[str]]:
    """Environment variables that one syntax node sets or removes; None for a name that is no literal."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)) and _is(node.value, "environ"):
        yield _literal(node.slice)
    elif isinstance(node, ast.AugAssign) and _is(node.target, "environ"):
        yield from _keys(node.value)
    elif isinstance(node, ast.Call):
        yield from _variables_of_call(node)


def _variables_of_call(node: ast.Call) -> Iterator[Optional[str]]:
    function = node.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if called in ("putenv", "unsetenv") and node.args:
        yield _literal(node.args[0])
    elif isinstance(function, ast.Attribute) and _is(function.value, "environ"):
        if called in ("setdefault", "pop") and node.args:
            yield _literal(node.args[0])
        elif called == "update":
            for argument in node.args:
                yield from _keys(argument)
            yield from (keyword.arg for keyword in node.keywords)
        elif called == "clear":
            yield None


def _is(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Name) and node.id == name)


def _literal(node: ast.AST) -> Optional[str]:
    if node.__class__.__name__ == "Index":  # python 3.8 wraps a subscript
        node = getattr(node, "value", node)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _keys(node: ast.AST) -> Iterator[Optional[str]]:
    if isinstance(node, ast.Dict):
        yield from (_literal(key) if key is not None else None for key in node.keys)
    elif isinstance(node, ast.Call) and _is(node.func, "dict") and not node.args:
        yield from (keyword.arg for keyword in node.keywords)
    else:
        yield None


def _replaces_itself(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _is(node.func.value, "os")
        and node.func.attr.startswith("exec")
    )


def _reorders_path(node: ast.AST) -> bool:
    """``sys.path = ...``, ``sys.path[...] = ...``, ``sys.path.insert(...)``: all but appending."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("insert", "remove"):
        return _is_sys_path(node.func.value)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return _is_sys_path(node.value)
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_sys_path(node)


def _is_sys_path(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and _is(node.value, "sys")


# -------------------------------------------------------------------------------------- what its ranks imported


class Learned:
    """The list kept for one script and interpreter: ``DIRECTORY/KEY.json``.

    ``modules`` in the order in which ranks looked for them; ``never`` holds names that did harm when the zygote
    imported them. A file that cannot be read counts as empty, one that cannot be written stays as it is.
    """

    def __init__(self, directory: str, interpreter: str, command: PyCommand, cwd: str) -> None:
        target = command.target if command.kind == "module" else os.path.realpath(os.path.join(cwd, command.target))
        self._about = {"interpreter": interpreter, "target": target}
        key = hashlib.sha256(f"{interpreter}\0{target}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self.path = os.path.join(directory, key + ".json")

    def read(self) -> List[str]:
        """Names for the zygote to import."""
        lists = self._load()
        return [name for name in lists["modules"] if name not in set(lists["never"])]

    def merge(self, names: Iterable[str]) -> List[str]:
        """Add names at the end; returns those that were new."""
        lists = self._load()
        known = set(lists["modules"]) | set(lists["never"])
        new = [name for name in dict.fromkeys(names) if _is_module_name(name) and name not in known]
        if new:
            self._save({**lists, "modules": (lists["modules"] + new)[:MOST_NAMES]})
        return new

    def forget(self, names: Iterable[str]) -> None:
        """Never import these again in a zygote."""
        lists = self._load()
        never = [*dict.fromkeys([*lists["never"], *filter(_is_module_name, names)])][:MOST_NAMES]
        self._save({"modules": [name for name in lists["modules"] if name not in set(never)], "never": never})

    def _load(self) -> Dict[str, List[str]]:
        try:
            with open(self.path, encoding="utf-8") as file:
                data = json.loads(file.read(MOST_NAMES * LONGEST_NAME))
        except (OSError, ValueError, RecursionError):
            data = {}
        data = data if isinstance(data, dict) else {}
        return {key: _names(data.get(key)) for key in ("modules", "never")}

    def _save(self, lists: Mapping[str, List[str]]) -> None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            write_whole(self.path, json.dumps({**self._about, **lists}, indent=0), mode=0o600)
        except OSError:
            pass  # it stays as it is: the next run imports a little later


def names(store: str, argv: Sequence[str], cwd: str, env: Mapping[str, str] = os.environ) -> List[str]:
    """List what a zygote for this command line should import: what its script says, then what its ranks did."""
    command = parse(argv, cwd)
    if not command.forkable:
        return []
    learned = _learned(store, command, cwd, env).read()
    return [*dict.fromkeys([*scan(command, cwd, env).names, *learned])]


def remember(store: str, argv: Sequence[str], cwd: str, recorded: str, env: Mapping[str, str] = os.environ) -> None:
    """Add what a rank's recorder wrote to the list kept for this command line."""
    command = parse(argv, cwd)
    if command.forkable:
        _learned(store, command, cwd, env).merge(read_imports(recorded))


def forget(store: str, argv: Sequence[str], cwd: str, module: str, env: Mapping[str, str] = os.environ) -> None:
    """Never preload ``module`` again for this command line: what to do with the culprit that a zygote names."""
    command = parse(argv, cwd)
    if command.forkable:
        _learned(store, command, cwd, env).forget([module.replace(":", ".")])


def _learned(store: str, command: PyCommand, cwd: str, env: Mapping[str, str]) -> Learned:
    found = shutil.which(command.python, path=env.get("PATH"))
    return Learned(store, os.path.abspath(os.path.join(cwd, found or command.python)), command, cwd)


def read_imports(path: str) -> List[str]:
    """Read the names that a rank's recorder wrote, once each, in order. A line cut short by a kill is dropped."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MOST_NAMES * LONGEST_NAME)
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1].split("\n")
    return _names(whole)


def _names(data: object) -> List[str]:
    texts = [name for name in data if isinstance(name, str)] if isinstance(data, list) else []
    return [name for name in dict.fromkeys(texts) if _is_module_name(name)][:MOST_NAMES]


def _is_module_name(name: str) -> bool:
    return len(name) <= LONGEST_NAME and all(part.isidentifier() for part in name.split("."))
