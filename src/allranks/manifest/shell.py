"""A line of shell as its simple commands, word by word, so far as that can be told without running it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

LONGEST = 16 * 1024
SUBSHELL = r"\$\((?:[^()'\"\\]|'[^']*'|\"[^\"]*\"|\\.|\((?:[^()'\"]|'[^']*'|\"[^\"]*\")*\))*\)"
# The alternatives differ in their first letters: no text makes the search go back and forth.
DOUBLE = rf"\"(?:\\.|{SUBSHELL}|\$(?!\()|[^\"\\$])*\""
PIECE = re.compile(rf"'[^']*'|{DOUBLE}|{SUBSHELL}|`[^`]*`|\$\{{[^}}]*\}}|\\.|[^\s;&|<>()`'\"\\]", re.DOTALL)
BLANK = re.compile(r"(?:[ \t]|\\\n)+|#[^\n]*")
OPERATOR = re.compile(r"\n|;;?|&&|\|\||\d*>&\d*-?|\d*>>|\d*>|\d*<<<?|\d*<|&>>?|\||&|\(|\)")
# Words with which a shell does more than one simple command.
RESERVED = frozenset(["if", "for", "while", "until", "case", "function", "select", "{", "!", "[[", "trap", "eval"])
SPECIAL = re.compile(r"[$`*?\[~]")
BETWEEN = ("\n", ";", "&&")
KUBERNETES_VARIABLE = re.compile(r"(?<!\$)\$\(([A-Za-z_][\w.-]*)\)", re.ASCII)
# In a script $(name) is a command, unless it looks like none.
UPPER_CASE = re.compile(r"(?<!\$)\$\(([A-Z_][A-Z0-9_]*)\)", re.ASCII)


@dataclass(frozen=True)
class Word:
    """One word as it stands (``raw``); ``text`` is what a shell makes of it, None where that needs the shell."""

    raw: str
    text: str | None
    given: str | None = None
    """As Kubernetes was given it, with ``$(VAR)`` in it."""

    @property
    def script(self) -> str | None:
        """What a shell is given as its script: variables that Kubernetes would have put in are the shell's now."""
        return self.text if self.given is None else UPPER_CASE.sub(r"${\1}", self.given)


@dataclass(frozen=True)
class Command:
    """A simple command. ``raw`` is its text; ``plain``: nothing is redirected, piped or in the background."""

    words: tuple[Word, ...]
    raw: str
    plain: bool = True


class NotSimple(Exception):
    """This text does more than run one command after the other."""


def commands(text: str) -> list[Command]:
    """Split a script into its commands. Raises NotSimple, saying at what."""
    if len(text) > LONGEST:
        raise NotSimple("a script of more than 16 KiB")
    found: list[Command] = []
    words: list[Word] = []
    at = begin = 0
    plain = True
    while at < len(text):
        if blank := BLANK.match(text, at):
            at = blank.end()
        elif operator := OPERATOR.match(text, at):
            if operator[0] in BETWEEN:
                _end(found, words, text[begin:at], plain)
                words, plain, begin = [], True, operator.end()
            elif operator[0] in ("(", ")", ";;", "||", "<<", "<<<"):
                raise NotSimple(f"{operator[0]!r}")
            else:
                plain = False
            at = operator.end()
        else:
            end = _word_end(text, at)
            words.append(word(text[at:end]))
            at = end
    _end(found, words, text[begin:], plain)
    return found


def _end(found: list[Command], words: list[Word], raw: str, plain: bool) -> None:
    if not words:
        return
    if words[0].raw in RESERVED:
        raise NotSimple(f"{words[0].raw!r}")
    found.append(Command(tuple(words), raw.strip(), plain))


def _word_end(text: str, at: int) -> int:
    start = at
    while piece := PIECE.match(text, at):
        at = piece.end()
    if at == start:
        raise NotSimple(f"{text[at : at + 12]!r}")
    return at


def word(raw: str) -> Word:
    """One word of a script."""
    if _needs_shell(raw):
        return Word(raw, None)
    try:
        return Word(raw, "".join(shlex.split(raw)))
    except ValueError:
        return Word(raw, None)


def _needs_shell(raw: str) -> bool:
    """Whether a shell would put something in, or find files by it."""
    bare = ""
    for piece in PIECE.findall(raw):
        if piece[0] == '"':
            if re.search(r"(?<!\\)[$`]", piece):
                return True
        elif piece[0] not in "'\\":
            bare += piece
    braces = "{" in bare and ("," in bare or ".." in bare)
    return braces or bool(SPECIAL.search(bare))


def literal(argv: tuple[str, ...]) -> tuple[Word, ...]:
    """Words that no shell reads; in them Kubernetes alone puts ``$(VAR)`` in."""
    return tuple(_literal(text) for text in argv)


def _literal(text: str) -> Word:
    if not KUBERNETES_VARIABLE.search(text):
        return Word(shlex.quote(text), text)
    parts = KUBERNETES_VARIABLE.split(text)
    names = KUBERNETES_VARIABLE.findall(text)
    raw = [shlex.quote(parts[0]) if parts[0] else ""]
    for name, after in zip(names, parts[2::2], strict=True):
        raw.append(f'"${{{name}}}"' + (shlex.quote(after) if after else ""))
    return Word("".join(raw), None, text)
