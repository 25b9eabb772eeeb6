"""What is kept of a hang: each rank's account and stacks as files, and the short form that the coordinator judges."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from allranks.node import processes
from allranks.node.gang import Gang

Frame = Tuple[str, int, str]

FOREIGN = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<(frozen|string)")
DUMPED_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
LARGEST_ACCOUNT = 48 * 1024


def folder(gang: Gang, attempt: int) -> str:
    return os.path.join(gang.state, "evidence", f"attempt-{attempt}")


def write(gang: Gang, attempt: int, name: str, text: str) -> str:
    """Keep one file of the attempt's evidence; returns what went wrong, or nothing."""
    path = os.path.join(folder(gang, attempt), name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        return f"cannot keep {path}: {error.strerror}"
    return ""


def keep(gang: Gang, attempt: int, account: Mapping[str, Any], answer: Mapping[str, Any], stacks: str) -> str:
    """``rank-R.json`` and ``rank-R.stack.txt``."""
    whole = {**account, "answer": answer}
    failed = write(gang, attempt, f"rank-{account['rank']}.json", json.dumps(whole, indent=1) + "\n")
    return failed or write(gang, attempt, f"rank-{account['rank']}.stack.txt", stacks)


# ---- the kernel's side


def kernel_state(pid: int) -> Dict[str, Any]:
    """State letter, the kernel function that it sleeps in, resident memory in bytes; nothing when it is gone."""
    process = processes.read(pid) if pid else None
    return {"state": process.state if process else "", "channel": _channel(pid), "rss": resident(pid)}


def resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _channel(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# ---- stacks


def render(threads: Sequence[Mapping[str, Any]]) -> str:
    """The thread's answer in faulthandler's form."""
    lines: List[str] = []
    for thread in threads:
        lines.append(f"Thread {thread['name']} (most recent call first):")
        lines += [f'  File "{file}", line {line} in {function}' for file, line, function in thread["frames"]]
        lines.append("")
    return "\n".join(lines)


def main_frames(threads: Sequence[Mapping[str, Any]]) -> List[Frame]:
    return [(file, line, function) for t in threads if t["main"] for file, line, function in t["frames"]]


def without_ours(text: str) -> str:
    """The text of faulthandler without the thread of ``inside.py``."""
    return "\n\n".join(block for block in text.split("\n\n") if "/allranks/node/watch/inside.py" not in block)


def dumped_frames(text: str) -> List[Frame]:
    """The frames of the main thread: it takes the signal, and where that is not marked it comes last."""
    blocks = text.split("\n\n")
    block = next((b for b in blocks if b.startswith("Current thread")), blocks[-1])
    found = [match for match in map(DUMPED_FRAME.match, block.splitlines()) if match]
    return [(m["file"], int(m["line"]) if m["line"].isdigit() else 0, m["function"]) for m in found]


def where(frames: Sequence[Frame]) -> str:
    """The innermost line of the job's own code, as ``train.py:40 misbehave``."""
    own = [frame for frame in frames if not FOREIGN.search(frame[0])] or list(frames)
    if not own:
        return ""
    file, line, function = own[0]
    return f"{os.path.basename(file)}:{line} {function}"


# ---- the short form


def short_groups(groups: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """Groups that were used, members as ranges, sizes as text; those that wait first, should there be too many."""
    used = [(name, group) for name, group in groups.items() if group["entered"]]
    used.sort(key=lambda item: not item[1]["waits"])
    short: Dict[str, Any] = {}
    left = LARGEST_ACCOUNT
    for name, group in used:
        sizes = [str(size) for size in group["sizes"]]
        one = {**group, "members": ranges(group["members"]), "sizes": sizes[:4]}
        left -= len(json.dumps(one)) + len(name)
        if left < 0:
            break
        short[name] = one
    return short


def ranges(numbers: Sequence[int]) -> List[Tuple[int, int, int]]:
    """Ascending numbers as (first, last, step): the groups of parallel training are such series."""
    found: List[Tuple[int, int, int]] = []
    for number in numbers:
        if found:
            first, last, step = found[-1]
            if first == last and number > first:
                found[-1] = (first, number, number - first)
                continue
            if number == last + step:
                found[-1] = (first, number, step)
                continue
        found.append((number, number, 1))
    return found
