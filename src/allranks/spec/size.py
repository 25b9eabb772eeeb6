"""What a process can be given on Linux: one word or variable of some size, and all of them together (execve(2))."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LONGEST = 131_072
"""Bytes of one word, or of one NAME=VALUE, with the NUL that ends it: MAX_ARG_STRLEN, 32 pages."""
MOST = 2 * 1024 * 1024
"""Bytes of all words and variables: a quarter of the usual stack of 8 MiB."""
SPARE = 64 * 1024
"""Of these, what the image's, the engine's and the launcher's own take."""
POINTER = 8
ELSEWHERE = "; put it into a file that the ranks read"


def check_env(env: Mapping[str, str]) -> None:
    """Raises ValueError for a variable that no process can have."""
    for name, value in env.items():
        if (size := _size(f"{name}={value}")) > LONGEST:
            raise ValueError(
                f"{name} takes {size:,} bytes with its name; allowed are {LONGEST:,}, more than that Linux gives no "
                f"process in one variable{ELSEWHERE}"
            )


def check_words(words: Iterable[str]) -> None:
    """Raises ValueError for a word that no process can be given."""
    for place, word in enumerate(words):
        if (size := _size(word)) > LONGEST:
            raise ValueError(
                f"word {place} has {size:,} bytes; allowed are {LONGEST:,}, more than that Linux gives no process in "
                f"one word{ELSEWHERE}"
            )


def check_all(env: Mapping[str, str], words: Iterable[str]) -> None:
    """Raises ValueError where words and variables together are too much for a process."""
    texts = [*(f"{name}={value}" for name, value in env.items()), *words]
    if (total := sum(_size(text) + POINTER for text in texts)) > MOST - SPARE:
        raise ValueError(
            f"run and env together take {total:,} bytes; allowed are {MOST - SPARE:,}, more than that Linux gives no "
            f"process{ELSEWHERE}"
        )


def _size(text: str) -> int:
    return len(text.encode()) + 1
