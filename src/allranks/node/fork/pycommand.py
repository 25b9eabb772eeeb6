"""What a Python command line says: which interpreter, which flags, what it runs."""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?$")
WITH_ARGUMENT = "WX"
WITHOUT_ARGUMENT = "bBdEhiIOPqRsStuvVx?"
LONG_WITH_ARGUMENT = ("--check-hash-based-pycs",)
REFUSED = {
    "i": "python -i is interactive",
    "h": "python -h only prints",
    "?": "python -? only prints",
    "V": "python -V only prints",
    "E": "python -E ignores PYTHONPATH, by which the zygote gets in",
    "I": "python -I ignores PYTHONPATH, by which the zygote gets in",
    "S": "python -S skips site, where the zygote gets in",
}


@dataclass(frozen=True)
class PyCommand:
    """A parsed command line. ``kind`` is script, directory (or zip), module, or empty when nothing can be forked.

    ``flags`` are the interpreter's own, as written; ``why`` says why such a command cannot be forked, or is empty.
    """

    python: str
    flags: Tuple[str, ...] = ()
    kind: str = ""
    target: str = ""
    args: Tuple[str, ...] = ()
    why: str = ""

    @property
    def forkable(self) -> bool:
        return not self.why

    def path0(self, cwd: str, env: Mapping[str, str] = os.environ) -> Optional[str]:
        """Tell what python will put at sys.path[0]; None when it puts nothing (-P, PYTHONSAFEPATH)."""
        if env.get("PYTHONSAFEPATH") or any(_holds(flag, "P") for flag in self.flags):
            return None
        full = os.path.join(cwd, self.target)
        if self.kind == "module":
            return os.path.abspath(cwd)
        if self.kind == "directory":
            return os.path.abspath(full)
        return os.path.dirname(os.path.realpath(full))


def _holds(flag: str, letter: str) -> bool:
    """Whether a word such as ``-uP`` holds the letter before an option with an argument begins."""
    if flag.startswith("--") or not flag.startswith("-"):
        return False
    return letter in re.split(f"[{WITH_ARGUMENT}]", flag[1:], maxsplit=1)[0]


def is_python(program: str) -> bool:
    """By name alone: python, python3, /opt/venv/bin/python3.11."""
    return PYTHON.match(os.path.basename(program)) is not None


def parse(argv: Sequence[str], cwd: str = ".") -> PyCommand:
    """Read ``argv`` as the interpreter would; ``cwd`` tells a directory or a zip file from a script."""
    if not argv or not is_python(argv[0]):
        return PyCommand(argv[0] if argv else "", why="not a python command")
    flags, rest = _split(list(argv[1:]))
    command = _target(argv[0], tuple(flags), rest, cwd)
    refused = next((REFUSED[x] for x in REFUSED if any(_holds(flag, x) for flag in flags)), "")
    return PyCommand(argv[0], tuple(flags), why=refused) if refused else command


def same_program(argv: Sequence[str], other: Sequence[str], cwd: str = ".") -> bool:
    """Whether two command lines differ in the script's own arguments at most."""
    one, two = parse(argv, cwd), parse(other, cwd)
    return tuple(argv) == tuple(other) or (
        one.forkable and (one.python, one.flags, one.kind, one.target) == (two.python, two.flags, two.kind, two.target)
    )


def _split(words: List[str]) -> Tuple[List[str], List[str]]:
    """Part the interpreter's flags from the rest, which begins with -c or -m or the script."""
    flags: List[str] = []
    while words and words[0].startswith("-") and words[0] != "-":
        word = words[0]
        end = _terminal(word)
        if end is not None:
            if end:
                flags.append(word[:end])
            return flags, ["-" + word[end or 1], *filter(None, [word[(end or 1) + 1 :]]), *words[1:]]
        flags.append(words.pop(0))
        if _wants_argument(word) and words:
            flags.append(words.pop(0))
    return flags, words


def _terminal(word: str) -> Optional[int]:
    """Where -c or -m sits in a word: 0 when it opens it, n in ``-uc``, None when it does not occur."""
    if word.startswith("--"):
        return None
    for index, letter in enumerate(word[1:], 1):
        if letter in "cm":
            return index if index > 1 else 0
        if letter in WITH_ARGUMENT:
            return None
    return None


def _wants_argument(word: str) -> bool:
    if word.startswith("--"):
        return word in LONG_WITH_ARGUMENT
    for index, letter in enumerate(word[1:], 1):
        if letter in WITH_ARGUMENT:
            return index == len(word) - 1
    return False


def _target(python: str, flags: Tuple[str, ...], rest: List[str], cwd: str) -> PyCommand:
    unknown = next((f for f in flags if not _known(f)), "")
    if unknown:
        return PyCommand(python, flags, why=f"python {unknown} is not one of the options that run a script")
    if not rest:
        return PyCommand(python, flags, why="python without a script reads its program from standard input")
    first, args = rest[0], rest[1:]
    if first == "-":
        return PyCommand(python, flags, why="python - reads its program from standard input")
    if first == "-c":
        return PyCommand(python, flags, why="python -c has its program in the command line")
    if first == "-m":
        if not args:
            return PyCommand(python, flags, why="python -m needs the name of a module")
        return PyCommand(python, flags, "module", args[0], tuple(args[1:]))
    full = os.path.join(cwd, first)
    packed = os.path.isdir(full) or (not first.endswith((".py", ".pyc")) and zipfile.is_zipfile(full))
    return PyCommand(python, flags, "directory" if packed else "script", first, tuple(args))


def _known(flag: str) -> bool:
    """Whether a word from the flags is one: an argument of -W or -X passes, an option that python lacks does not."""
    if not flag.startswith("-"):
        return True
    if flag.startswith("--"):
        return flag in LONG_WITH_ARGUMENT
    return all(letter in WITHOUT_ARGUMENT for letter in re.split(f"[{WITH_ARGUMENT}]", flag[1:], maxsplit=1)[0])
