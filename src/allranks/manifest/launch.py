"""A launch command taken apart: which launcher, how many ranks, and the command that each rank runs.

What cannot be taken apart with certainty is kept whole, and ``doubt`` says why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from allranks.manifest.options import MODULES, MPIRUN, PROGRAMS, STARTERS, Option
from allranks.manifest.shell import LONGEST, Command, NotSimple, Word, commands, literal
from allranks.spec.field import OURS

SHELLS = ("bash", "sh", "dash", "zsh", "ash")
PYTHON = re.compile(r"(python|pypy)[\d.]*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)
# What a launcher's script does before it can launch, and a roll call makes needless.
WAITS = ("sleep", "wait", "nslookup", "getent")
DEEPEST = 6
FOUND_BY_US = "allranks sets what ranks need to find each other"
ROLL_CALL = "no rank starts before every node has answered the roll call"
STARTS = re.compile(
    r"\b(?:mpirun|mpiexec|torchrun|deepspeed|python3? -m torch\.distributed\.\w+)[ \t](?:[^\n\\]|\\.)*", re.DOTALL
)
LINE_END = re.compile(r"\||;|&&|\bdone\b|\d?>|&$")


@dataclass
class Launch:
    """``run``: the ranks' words; ``script``: that only a shell understands them, and the text for it.

    ``ranks`` counts all ranks, ``per_node`` those of a node; None where the command does not say. ``lost`` are pairs of
    what has no counterpart and why. ``passed`` are the variables that mpirun hands on (``-x``).
    """

    launcher: str = "native"
    run: tuple[str, ...] = ()
    script: str = ""
    nodes: int | None = None
    ranks: int | None = None
    per_node: int | None = None
    restarts: int | None = None
    deadline: int | None = None
    workdir: str = ""
    hostfile: str = ""
    env: dict[str, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)
    lost: list[tuple[str, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    doubt: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """What every rank runs, as words that need no shell."""
        return ("bash", "-c", self.script) if self.script else self.run


def take_apart(argv: Sequence[str]) -> Launch:
    """Take a command apart; never raises."""
    launch = Launch(run=tuple(argv))
    try:
        _words(launch, literal(tuple(argv)), False, 0)
    except NotSimple as reason:
        return Launch(run=tuple(argv), doubt=str(reason), before=launch.before)
    return launch


def _words(launch: Launch, words: tuple[Word, ...], in_shell: bool, depth: int) -> None:
    """Peel one layer: assignments, env, exec, a shell's -c, a launcher."""
    if depth > DEEPEST:
        raise NotSimple("wrappers within wrappers")
    words = _assignments(launch, words)
    if not words:
        raise NotSimple("no command")
    head = PurePath(words[0].text or "").name
    if head in ("exec", "env", "command", "nohup", "time") and len(words) > 1 and not words[1].raw.startswith("-"):
        return _words(launch, words[1:], in_shell, depth + 1)
    if head in SHELLS and (script := _dash_c(words)) is not None:
        return _script(launch, script, depth)
    if PYTHON.fullmatch(head):
        at = next((i for i, word in enumerate(words) if word.text == "-m"), 0)
        if at and at + 1 < len(words) and (words[at + 1].text or "") in MODULES:
            return _launcher(launch, MODULES[words[at + 1].text or ""], words[at + 2 :], in_shell, depth)
    if head in PROGRAMS:
        return _launcher(launch, head, words[1:], in_shell, depth)
    if head in STARTERS:
        raise NotSimple(f"{head} starts ranks in its own way")
    return _rank(launch, words, in_shell)


def _assignments(launch: Launch, words: tuple[Word, ...]) -> tuple[Word, ...]:
    while words and (found := ASSIGNMENT.match(words[0].raw)):
        _assign(launch, found[1], words[0])
        words = words[1:]
    return words


def _assign(launch: Launch, name: str, word: Word) -> None:
    if name in OURS or name.startswith(("PET_", "ALLRANKS_")):
        launch.lost.append((word.raw, FOUND_BY_US))
    elif word.text is None:
        raise NotSimple(f"{word.raw!r} needs a shell")
    else:
        launch.env[name] = word.text.partition("=")[2]


def _dash_c(words: tuple[Word, ...]) -> str | None:
    """The script of ``bash -lc SCRIPT``; None where there is none."""
    at = 1
    while at < len(words) and (text := words[at].text or "").startswith(("-", "+")):
        if re.fullmatch(r"[-+][a-zA-Z]*[oO]", text):
            at += 1
        elif re.fullmatch(r"-[a-z]*c", text):
            if at + 2 < len(words):
                raise NotSimple("words after the shell's script")
            return words[at + 1].script if at + 1 < len(words) else None
        at += 1
    return None


def _script(launch: Launch, text: str, depth: int) -> None:
    """Run of commands, the last of which is what counts; what comes before it is kept in ``before``."""
    found = commands(text)
    if not found:
        raise NotSimple("an empty script")
    for command in found[:-1]:
        _prelude(launch, command)
    last = found[-1]
    if not last.plain:
        raise NotSimple(f"{last.raw!r} is redirected, piped or in the background")
    _words(launch, last.words, True, depth + 1)


def _prelude(launch: Launch, command: Command) -> None:
    first, rest = command.words[0].raw, command.words[1:]
    if first == "set" or first == "ulimit":
        launch.lost.append((command.raw, "this is the launching shell's own"))
    elif first in WAITS:
        launch.lost.append((command.raw, ROLL_CALL))
    elif first == "cd" and len(rest) == 1 and rest[0].text:
        launch.workdir = rest[0].text
    elif first == "export" or ASSIGNMENT.match(first):
        for word in rest if first == "export" else command.words:
            if (pair := ASSIGNMENT.match(word.raw)) is None:
                continue
            try:
                _assign(launch, pair[1], word)
            except NotSimple:
                launch.before.append(f"export {word.raw}" if first == "export" else word.raw)
    else:
        launch.before.append(command.raw)


def _rank(launch: Launch, words: tuple[Word, ...], in_shell: bool) -> None:
    """What is left is the command of a rank."""
    raw = " ".join(word.raw for word in words)
    if all(word.text is not None for word in words):
        launch.run = tuple(word.text or "" for word in words)
    elif in_shell:
        launch.script = f"exec {raw}"
    else:
        # Of such words Kubernetes itself puts $(VAR) in, without a shell.
        launch.script = "exec " + " ".join(word.raw for word in words)


def _launcher(launch: Launch, program: str, words: tuple[Word, ...], in_shell: bool, depth: int) -> None:
    table = PROGRAMS[program]
    kind = "mpirun" if table is MPIRUN else "deepspeed" if program.startswith("deepspeed") else "torchrun"
    outer = launch.launcher
    if outer not in ("native", "mpirun") or (outer == "mpirun" and kind == "mpirun"):
        raise NotSimple(f"{kind} inside {outer}")
    if outer == "mpirun" and launch.per_node != 1 and (launch.ranks or 0) > 1:
        launch.lost.append(("mpirun", f"it starts {kind} once a node, as allranks does by itself"))
    launch.launcher, launch.per_node = kind, None
    flags: set[str] = set()
    rest = words
    while rest and (option := rest[0].text if rest[0].text is not None else rest[0].raw).startswith("-"):
        rest = _option(launch, kind, table, option, rest, flags)
    if not rest:
        raise NotSimple(f"{program} without a command")
    if kind == "mpirun":
        if any(word.text == ":" for word in rest):
            raise NotSimple("mpirun starts several programs, divided by ':'")
        return _words(launch, rest, in_shell, depth + 1)
    return _script_of(launch, kind, rest, in_shell, flags)


def _script_of(launch: Launch, kind: str, rest: tuple[Word, ...], in_shell: bool, flags: set[str]) -> None:
    if "bare" not in flags:
        module = literal(("-m",)) if "module" in flags else ()
        rest = (*literal(("python",)), *module, *rest)
    if kind == "deepspeed" and "no_local_rank" not in flags:
        launch.lost.append(
            ("deepspeed's --local_rank=N for the script", "read LOCAL_RANK from the environment instead")
        )
    _rank(launch, rest, in_shell)


def _option(
    launch: Launch, kind: str, table: dict[str, Option], option: str, rest: tuple[Word, ...], flags: set[str]
) -> tuple[Word, ...]:
    """Take one option off the front."""
    name, equals, value = option.partition("=")
    key = name.lstrip("-").replace("-", "_")
    if key not in table:
        raise NotSimple(f"{kind}'s option {name} is not known here")
    count, meaning = table[key]
    inline = bool(equals) and count == 1
    taken = rest[1 : 1 + (0 if inline else count)]
    if len(taken) < (0 if inline else count):
        raise NotSimple(f"{kind}'s option {name} without its value")
    values = [value] if inline else [word.text if word.text is not None else word.raw for word in taken]
    flags.update((meaning, key))
    launch.options.setdefault(key, []).extend(values)
    _mean(launch, meaning, name, values, any(word.text is None for word in taken))
    return rest[1 + len(taken) :]


def _mean(launch: Launch, meaning: str, name: str, values: list[str], needs_shell: bool) -> None:
    """What an option says of the gang."""
    said = " ".join([name, *values])
    number = int(values[0]) if values and re.fullmatch(r"\d{1,6}", values[0]) else None
    if meaning in ("ranks", "per_node", "restarts", "deadline", "nodes") and number is not None:
        setattr(launch, meaning, number)
    elif meaning == "lost" or (meaning in ("restarts", "deadline", "ranks") and "$" not in said):
        launch.lost.append((said, "allranks has no such setting"))
    elif meaning == "one_per_node":
        launch.per_node = 1
    elif meaning == "map_by" and (found := re.match(r"ppr:(\d{1,6}):node", values[0])):
        launch.per_node = int(found[1])
    elif meaning == "map_by":
        launch.lost.append((said, "ranks are placed node by node, in order"))
    elif meaning == "hostfile":
        launch.hostfile = values[0]
    elif meaning == "workdir":
        launch.workdir = values[0]
    elif meaning in ("variable", "pair", "names"):
        _pass_on(launch, meaning, values, needs_shell)
    elif (
        meaning in ("nodes", "per_node")
        and not needs_shell
        and "$" not in values[0]
        and values[0] not in ("auto", "gpu", "cpu")
    ):
        launch.lost.append((said, "a gang has a fixed number of nodes and ranks"))


def _pass_on(launch: Launch, meaning: str, values: list[str], needs_shell: bool) -> None:
    if meaning == "names":
        launch.passed += values[0].split(",")
        return
    name, equals, value = ("=".join(values) if meaning == "pair" else values[0]).partition("=")
    launch.passed.append(name)
    if equals and (name in OURS or needs_shell):
        if name not in OURS:
            launch.before.append(f"export {name}={value}")
        else:
            launch.lost.append((f"-x {name}={value}", FOUND_BY_US))
    elif equals:
        launch.env[name] = value


def glimpse(argv: Sequence[str]) -> Launch:
    """As ``take_apart``; where that is in doubt, what a line of the script says that starts a launcher."""
    launch = take_apart(argv)
    if not launch.doubt:
        return launch
    for found in STARTS.finditer("\n".join(argv)[:LONGEST]):
        line = LINE_END.split(found[0].replace("\\\n", " "))[0]
        seen = Launch()
        try:
            _script(seen, line, 0)
        except NotSimple:
            continue
        return seen
    return launch
