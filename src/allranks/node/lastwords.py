"""What a process printed last, and what of it tells why it ended.

Python prints the traceback of the exception that ends it, but others look the same: of threads, of exceptions that were
caught and printed, of processes of its own. The one that counts begins in the program itself (``in <module>``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from allranks.node.watch import evidence

TAIL_LINES = 20
TAIL_WIDTH = 300
TAIL_BYTES = 32 * 1024
NEAR_END, AT_END = 40, 5
"""How many lines may follow an exception that ended the process: from exit handlers, C++ and other threads."""

TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch repeats an uncaught exception with this before each line
HEADER = re.compile(r"^(  \+ Exception Group |Original )?Traceback \(most recent call last\):")
EXCEPTION = re.compile(r"^(?P<name>[^\W\d][\w.]*)(: ?(?P<message>.*))?$")
ENDS_NOTHING = re.compile(r"^(Exception (in|ignored)\b|--- Logging error ---|Process \S*Process-[\d:]+:)")
CHAINED = re.compile(r"^(During handling of the above|The above exception was the direct cause)")
NESTED = re.compile(r"^(-- Process \d+ terminated with the following error:)")
MARGIN = re.compile(r"^[ +]*\| ?")  # before each line of an exception group
IN_PROGRAM = re.compile(r'^ *\|? *File ".*", line \d+, in (<module>|_run_module_as_main)$')
SYNTAX = re.compile(r"^(SyntaxError|IndentationError|TabError): ")
FATAL = re.compile(
    r"^(Fatal Python error: |terminate called |double free |free\(\): |malloc|munmap_chunk|corrupted |\*\*\* .* \*\*\*"
    r"|.*Assertion .* failed|.*Check failed: |.*out of shared memory|LLVM ERROR: |==\d+==ERROR: )"
)
FRAME = re.compile(r"^(frame #\d+|\S*\[W\d+ )")


@dataclass(frozen=True)
class Exceptional:
    """An exception: its class, the line to tell, and all that it said."""

    name: str
    line: str
    text: str


def read(path: str) -> Tuple[str, ...]:
    """The last lines that say something; a progress bar's line keeps its last state."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.replace("\0", "").split("\n")]
    return tuple(line for line in lines if line.strip())


def tail(lines: Sequence[str]) -> Tuple[str, ...]:
    """Those to show, bounded in number and width."""
    return tuple(line[:TAIL_WIDTH] for line in lines[-TAIL_LINES:])


def read_tail(path: str) -> Tuple[str, ...]:
    """The last lines of a log, to show."""
    return tail(read(path))


def exception(lines: Sequence[str]) -> Optional[Exceptional]:
    """The exception that ended a python, if one did."""
    plain = [TORCH_PREFIX.sub("", line) for line in lines]
    starts = [number for number, line in enumerate(plain) if HEADER.match(line)]
    blocks = [_Block(plain, start, end) for start, end in zip(starts, [*starts[1:], len(plain)])]
    for before, block in zip(blocks, blocks[1:]):
        if block.is_chained:
            block.ends_nothing = before.ends_nothing
        elif block.is_nested:
            block.in_program = before.in_program
    own = [block for block in blocks if block.said and not block.ends_nothing]
    for block in reversed(own):
        if block.lines_after <= (NEAR_END if block.in_program else AT_END):
            return block.told()
    if plain and SYNTAX.match(plain[-1]):  # in the script itself: there is no traceback
        return Exceptional(plain[-1].split(":")[0], plain[-1], plain[-1])
    return None


class _Block:
    """One traceback, from its header to the next."""

    def __init__(self, lines: List[str], start: int, end: int) -> None:
        before = lines[start - 1] if start else ""
        body = lines[start + 1 : end]
        length = next((n for n, line in enumerate(body) if not line.startswith(" ") or _opens_group(line)), len(body))
        self.frames, self.said = body[:length], body[length:]
        self.is_chained, self.ends_nothing = bool(CHAINED.match(before)), bool(ENDS_NOTHING.match(before))
        self.is_nested = bool(NESTED.match(before)) or lines[start].startswith("Original ")
        self.in_program = any(IN_PROGRAM.match(line) for line in self.frames[:1])
        self.lines_after = sum(not FRAME.match(line) for line in lines[start + 2 + length :])

    def told(self) -> Exceptional:
        said = [MARGIN.sub("", line) for line in self.said]
        found = EXCEPTION.match(said[0])
        line = said[0]
        more = [other for other in said[1:] if EXCEPTION.match(other)] if MARGIN.match(self.said[0]) else said[1:]
        if more and (MARGIN.match(self.said[0]) or not (found and found["message"])):
            line = f"{line.rstrip(': ')}: {more[0].strip()}"  # the first of a group, or a message that begins below
        return Exceptional(found["name"] if found else "", line, "\n".join(said))


def _opens_group(line: str) -> bool:
    """``  | ExceptionGroup: ...``, where the frames are behind the same margin, further in."""
    return bool(re.match(r"^ +\| \S", line))


def fatal(lines: Sequence[str]) -> str:
    """What C, C++ or the interpreter said before a signal that they sent themselves, or nothing."""
    found = [number for number, line in enumerate(lines) if FATAL.match(line) and number >= len(lines) - 10 * AT_END]
    if not found:
        return ""
    said = lines[found[-1]].strip()
    after = lines[found[-1] + 1 :]
    if after and after[0].strip().startswith("what():"):
        said += f": {after[0].partition('what():')[2].strip()}"
    if said.startswith("Fatal Python error: "):
        where = evidence.where(evidence.dumped_frames("\n".join(_current_thread(after))))
        return said + (f" in {where}" if where else "")
    return said


def _current_thread(lines: Sequence[str]) -> Sequence[str]:
    """The lines of faulthandler about the thread that it was."""
    start = next((n for n, line in enumerate(lines) if line.startswith("Current thread")), len(lines))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith("  ")), len(lines))
    return lines[start:end]
