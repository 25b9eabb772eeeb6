"""What broke the attempts: each cause, with the evidence that was kept of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from allranks.cli import words
from allranks.cli.page.html import Budget, Html, el, join, text
from allranks.engines.engine import Evidence
from allranks.node.cause import Cause

_TOO_MUCH = "left out, so that this page stays small"


def last(cause: Cause, evidence: Evidence | None, budget: Budget) -> Html:
    """The cause that a reader came for, unfolded."""
    fallback = el("p", f"The cause is {_TOO_MUCH}: see allranks status.")
    return join(budget.spend(_body(cause)) or fallback, _evidence(cause, evidence, budget))


def earlier(causes: Sequence[Cause], evidence: Mapping[int, Evidence], budget: Budget) -> Html:
    """The others, folded, newest first."""
    return join(*(_folded(cause, evidence.get(cause.attempt), budget) for cause in reversed(causes)))


def _folded(cause: Cause, evidence: Evidence | None, budget: Budget) -> Html:
    head = el(
        "summary",
        el("b", f"attempt {cause.attempt}"),
        " ",
        el("span", _KEPT_WHERE.sub("", cause.message), class_="gist"),
    )
    body = budget.spend(_body(cause))
    if body is None:
        return el("details", head, el("p", f"Its details are {_TOO_MUCH}."))
    return el("details", head, body, _evidence(cause, evidence, budget), class_="card")


_KEPT_WHERE = re.compile(r" \(stacks of all ranks: [^()]*\)$")
"""What the page shows, it need not say where to look for."""


def _body(cause: Cause) -> Html:
    parts = [el("p", _KEPT_WHERE.sub("", cause.message), class_="message"), _facts(cause)]
    if cause.tail:
        parts += [el("h4", "Its last lines"), output(cause.tail)]
    if cause.secondary:
        parts.append(_secondary(cause))
    if cause.log:
        parts.append(el("p", "Full log: ", el("code", cause.log), class_="quiet"))
    return join(*parts)


def _facts(cause: Cause) -> Html:
    facts = [
        ("attempt", str(cause.attempt)),
        ("rank", "-" if cause.rank is None else str(cause.rank)),
        ("node", "-" if cause.node is None else str(cause.node)),
        ("kind", cause.kind + (f" ({cause.signal})" if cause.signal else "")),
        ("exit code", "-" if cause.exit is None else str(cause.exit)),
        ("at", words.local_time(cause.at)),
    ]
    return facts_of(facts)


def facts_of(facts: Sequence[tuple[str, str]]) -> Html:
    """Names and values side by side."""
    return el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in facts), class_="facts")


def output(lines: Sequence[str]) -> Html:
    """Lines of a rank's output."""
    return el("pre", text("\n".join(lines), 400 * max(1, len(lines))), tabindex="0", class_="output")


def _secondary(cause: Cause) -> Html:
    count = words.counted(len(cause.secondary), "rank")
    rows = [el("li", f"rank {one.rank} ({one.kind}): {one.message}") for one in cause.secondary]
    return el("details", el("summary", f"{count} fell because of it"), el("ul", *rows))


# ---- evidence


def _evidence(cause: Cause, evidence: Evidence | None, budget: Budget) -> Html | None:
    if evidence is None or not (evidence.table or evidence.stacks):
        return None
    parts = [el("h4", "Where each rank was"), budget.spend(_table(evidence.table, cause.rank))]
    left_out = 0
    for ranks, stack in _alike(evidence.stacks, cause.rank):
        shown = budget.spend(_stack(ranks, stack, cause.rank in ranks))
        left_out += len(ranks) if shown is None else 0
        parts.append(shown)
    if left_out:
        parts.append(el("p", f"The stacks of {words.counted(left_out, 'rank')} are {_TOO_MUCH}.", class_="cut"))
    parts.append(el("p", "All of it: ", el("code", evidence.folder), class_="quiet"))
    return el("div", *parts, class_="evidence")


def _alike(stacks: Mapping[int, str], culprit: int | None) -> list[tuple[list[int], str]]:
    """The culprit by itself; then ranks whose stacks are the same, by how few they are."""
    ranks: dict[tuple[bool, str], list[int]] = {}
    for rank, stack in stacks.items():
        ranks.setdefault((rank == culprit, _ADDRESS.sub("", stack)), []).append(rank)
    found = [(sorted(alike), stacks[min(alike)]) for alike in ranks.values()]
    return sorted(found, key=lambda one: (culprit not in one[0], len(one[0]), one[0]))


_ADDRESS = re.compile(r"0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


def _stack(ranks: Sequence[int], stack: str, is_culprit: bool) -> Html:
    name = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {spans(ranks)}"
    innermost = _FRAME.search(stack)
    where = f"{innermost['file'].rsplit('/', 1)[-1]}:{innermost['line']} {innermost['function']}" if innermost else ""
    head = [
        el("b", name),
        el("span", "culprit", class_="tag") if is_culprit else None,
        el("span", where, class_="gist"),
    ]
    body = el("pre", text(stack, 70_000), tabindex="0", class_="output")
    return el("details", el("summary", *head), body, open=is_culprit)


def spans(numbers: Sequence[int]) -> str:
    """``0 to 3, 5, 8 to 11``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    shown = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a} to {b}" for a, b in found]
    return ", ".join(shown[:8]) + (f", ... ({len(numbers)} of them)" if len(shown) > 8 else "")


def _table(table: str, culprit: int | None) -> Html:
    """The sequence table; its columns are where its head says."""
    lines = table.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith("rank  ")), None)
    if head is None:
        return el("pre", text(table, 20_000), class_="output") if table else el("p", "No table was kept.")
    starts = [found.start() for found in re.finditer(r"\S+", lines[head])]
    rows = [_cells(line, starts) for line in lines[head:] if line]
    body = [
        el("tr", *(el("td", cell) for cell in row), class_="culprit" if row[0] == str(culprit) else None)
        for row in rows[1:]
    ]
    return el(
        "div",
        el("table", el("thead", el("tr", *(el("th", cell, scope="col") for cell in rows[0]))), el("tbody", *body)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="sequence table",
    )


def _cells(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
