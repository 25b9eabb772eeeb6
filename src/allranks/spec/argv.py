"""A command as words: split as a shell would, and refused where only a shell would understand it."""

from __future__ import annotations

import re
import shlex

from allranks.spec.size import check_words

SHELL_WORDS = frozenset(["&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"])
SHELL = "write the list [sh, -c, '...'] for a shell"


def check(run: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Give the command back as it was written, if it is one. Raises ValueError."""
    try:
        argv = split(run) if isinstance(run, str) else run
    except ValueError as error:
        # shlex's own words: 'No closing quotation', 'No escaped character'.
        raise ValueError(f"{str(error)[0].lower()}{str(error)[1:]}") from error
    if not argv or not argv[0]:
        raise ValueError("allowed is the command of every rank, such as python train.py")
    check_words(argv)
    return run


def split(command: str) -> tuple[str, ...]:
    """Split a command as a POSIX shell would, without running one. Raises ValueError."""
    # shlex keeps an escaped line end as a word of its own; a shell drops it.
    line = re.sub(r"\\\r?\n", "", command).strip()
    words = _words(line, " \t\r\n")
    if words != _words(line, " \t\r"):
        raise ValueError(f"no shell reads this, so it is one line; {SHELL}")
    for word in words:
        if word in SHELL_WORDS:
            raise ValueError(f"no shell reads this, so {word!r} means nothing; {SHELL}")
    if words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.ASCII | re.DOTALL):
        raise ValueError(f"no shell reads this; put {words[0]!r} into env")
    return words


def _words(line: str, spaces: str) -> tuple[str, ...]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = spaces, True, ""
    return tuple(lexer)
