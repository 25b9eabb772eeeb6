"""The page about a run: well-formed and complete whatever the run was, and harmless whatever its ranks printed."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from allranks.cli.page import page
from allranks.engines.engine import Evidence, Kept, Sample
from allranks.node.cause import Cause, Secondary
from allranks.node.status import AttemptStatus, NodeStatus, RankStatus, Status, Straggler

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
HOSTILE = (
    "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"
    "\x00\x1b]0;title\x07\x1b[31m\u202e\ud800\r"
)
TABLE = """{0}

rank  node  state  answers  in         where
0     0     S      yes      x #1       a.py:1 f
1     0     S      yes      -          {0}
"""
VOID = {"meta", "br"}
BOUND = 5_000_000


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def ended(ranks: range) -> list[RankStatus]:
    return [RankStatus(rank, rank % 4, 10 + rank, "ended", int(rank == 1)) for rank in ranks]


def a_run(causes: int = 1, ranks: int = 4, phase: str = "failed", words: str = "loss is nan") -> tuple[Status, Kept]:
    """A run of as many attempts as causes, ten seconds each, all of them hangs of rank 1 with evidence."""
    nodes = [
        NodeStatus(n, f"g-{n}", "127.0.0.1", "ended", "", ended(range(4 * n, 4 * n + 4))) for n in range(ranks // 4)
    ]
    attempts = [AttemptStatus(a, at(10 * a), at(10 * a + 1), at(10 * a + 9.5)) for a in range(max(causes, 1))]
    found = [
        Cause(
            a, "hang", at(10 * a + 8), f"rank 1 on node 0: {words}", 1, 0, None, 1, (words,) * 20, "/x/rank-1.log",
            tuple(Secondary(r, "exit", words) for r in range(min(ranks, 32)) if r != 1),
        )
        for a in range(causes)
    ]  # fmt: skip
    status = Status(
        "g", "local", phase, words, max(causes - 1, 0), {"used": 2, "allowed": 3}, ranks, nodes, "gloo/tcp", found,
        at(0), at(10 * max(causes, 1)) if phase != "running" else "", 1, [words], attempts=attempts,
    )  # fmt: skip
    table = TABLE.format(words)
    stacks = {r: f'Thread MainThread:\n  File "/x/train.py", line {r % 2} in {words}\n' for r in range(ranks)}
    history = {
        r: [Sample(START.timestamp() + s, s // 10, 2**30 + s, 5 * (s % 10)) for s in range(40)] for r in range(ranks)
    }
    kept = Kept(
        ("python", "train.py", words), "/x", {a: Evidence(f"/x/{a}", table, stacks) for a in range(causes)},
        dict.fromkeys(range(ranks), (words,) * 20), history,
    )  # fmt: skip
    return status, kept


def never_started() -> tuple[Status, Kept]:
    return Status("g", "local", "failed", "it could not be started: no space", exit_code=70), Kept(folder="/x")


def going_on() -> tuple[Status, Kept]:
    status, kept = a_run(phase="running")
    status.straggler = Straggler("rank 1 on node 0 had not entered all_reduce #7 that 3 ranks wait in", at(4), 1, 0)
    status.attempts[-1].ended, status.exit_code = "", None
    return status, kept


RUNS = {
    "failed": a_run(),
    "going on": going_on(),
    "never started": never_started(),
    "cancelled": a_run(phase="cancelled"),
    "succeeded": a_run(causes=0, phase="succeeded"),
    "fifty causes": a_run(causes=50),
    "128 ranks": a_run(ranks=128, causes=2),
    "hostile": a_run(words=HOSTILE, causes=3),
}


class Parsed(html.parser.HTMLParser):
    """Fails for an element that is not closed where it should be; keeps titles, text and what could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str] = []
        self.scripts: list[str] = []
        self.text, self.seen = "", set[str]()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert not [name for name in names if name.startswith("on") or name in ("src", "href")], (tag, attrs)
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("rect", "line", "polyline", "polygon", "circle")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self.titles.append(data)
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        self.text += data


def parsed(run: tuple[Status, Kept]) -> Parsed:
    return Parsed(page(*run, now=START + timedelta(seconds=12)))


@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_a_page_is_well_formed_small_and_loads_nothing(run: tuple[Status, Kept]) -> None:
    text = page(*run)
    assert len(text.encode()) < BOUND
    assert "://" not in text
    found = Parsed(text)
    assert found.titles[0] == "Attempts"
    assert len(found.scripts) == 1


def test_what_ranks_print_stays_text_and_what_cannot_be_seen_is_written_out() -> None:
    found = parsed(RUNS["hostile"])
    assert "img" not in found.seen
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'" in found.text
    assert "\\x00" in found.text
    assert "\\u202e" in found.text
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f\u202e\ud800]", found.text)


@pytest.mark.parametrize(
    ("run", "titles"),
    [
        ("failed", ["Attempts", "Why it ended", "Ranks", "Memory", "Progress", "Notes"]),
        ("going on", ["Attempts", "What broke last", "Ranks", "Memory", "Progress", "Notes"]),
        ("never started", ["Attempts"]),
        ("fifty causes", ["Attempts", "Why it ended", "Ranks", "Memory", "Progress", "What broke before", "Notes"]),
    ],
)
def test_a_page_has_the_sections_that_the_run_has_something_for(run: str, titles: list[str]) -> None:
    assert parsed(RUNS[run]).titles == titles


def test_the_culprit_comes_first_and_ranks_with_the_same_stack_are_one() -> None:
    text = parsed(RUNS["128 ranks"]).text
    assert text.index("rank 1culprit") < text.index("ranks 0, 2, 4, 6")
    ranks = text[text.index("collectives/slast line") :]
    assert ranks.index("rank 1") < ranks.index("rank 0") < ranks.index("96 more ranks")


def test_a_run_that_goes_on_says_whom_the_others_wait_for() -> None:
    assert "waiting for 8 s: rank 1 on node 0 had not entered all_reduce #7" in parsed(RUNS["going on"]).text


def test_what_is_too_much_is_left_out_and_said() -> None:
    status, kept = a_run(ranks=128, causes=50, words="<&>" * 5000)
    text = page(status, kept)
    assert len(text.encode()) < BOUND
    assert "left out, so that this page stays small" in Parsed(text).text


def chromium(*flags: str) -> str:
    """Run the browser on a page and return what it writes, skipping loudly where there is none."""
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium")
    base = [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    done = subprocess.run([*base, *flags], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search(r"CONSOLE|Content Security Policy|Uncaught", done.stderr), done.stderr
    return done.stdout


@pytest.mark.parametrize("run", ["hostile", "128 ranks"])
def test_a_browser_shows_it_without_an_error(run: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(page(*RUNS[run]).encode())
    profile: Any = f"--user-data-dir={tmp_path / 'profile'}"
    dom = chromium(profile, "--dump-dom", f"file://{file}")
    assert Parsed(dom.split("\n", 1)[1] if dom.startswith("<!") else dom).titles[:3] == [
        "Attempts",
        "Why it ended",
        "Ranks",
    ]
