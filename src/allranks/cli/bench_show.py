"""What a bench shows: rows while they come, then the verdict, pictures, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from allranks.bench import table, verdict
from allranks.bench.result import Curve
from allranks.cli import output as out
from allranks.fabric import pairs

EXIT_TOO_SLOW = 1


class Show:
    """``output`` is json, yaml or None for people. ``interrupted`` and ``failed`` are set by who runs the gang."""

    def __init__(self, output: str | None, png: str | None, html: str | None, least: float | None) -> None:
        self._output, self._png, self._html, self._least = output, png, html, least
        self._titled: set[tuple[str, str]] = set()
        self.interrupted: int = 0
        self.failed = 0

    def row(self, curve: Curve) -> None:
        """The newest row, as soon as it is measured."""
        row = curve.rows[-1]
        key = (curve.label, row.collective)
        if key not in self._titled:
            self._titled.add(key)
            for line in table.title(row.collective, curve):
                self._say(line)
        self._say(table.line(row))

    def _say(self, line: str) -> None:
        click.echo(line, err=self._output is not None)

    def curves(self, curves: Sequence[Curve], *, complete: bool) -> int:
        """All that follows the last row."""
        said = self._verdict(curves, complete)
        if not self._titled:
            for line in (line for curve in curves for line in table.table(curve)):
                self._say(line)
        else:
            for line in (line for curve in curves for line in table.foot(curve)):
                self._say(line)
        if len(curves) > 1:
            for line in table.side_by_side(curves):
                self._say(line)
        for line in said:
            self._say(f"verdict: {line}")
        self._draw(curves, said)
        if self._output:
            best = max((row.busbw for curve in curves for row in curve.rows), default=0.0)
            value = {"curves": [curve.to_json() for curve in curves], "best_busbw": best, "verdict": said}
            out.write({**value, "complete": complete}, self._output)
        return self._code(curves)

    def _verdict(self, curves: Sequence[Curve], complete: bool) -> list[str]:
        said = [] if complete else ["it did not run to its end: what follows is of the sizes that were measured"]
        for curve in curves:
            said += [f"{curve.label}: {line}" if len(curves) > 1 else line for line in verdict.verdict(curve)]
        if len(curves) > 1:
            said += verdict.compared(curves)
        gate = self._missed(curves)
        return [*said, gate] if gate else said

    def _missed(self, curves: Sequence[Curve]) -> str:
        """Why the gate is not passed; of several settings by the first one's."""
        if self._least is None:
            return ""
        best = max((row.busbw for row in curves[0].rows), default=0.0) if curves else 0.0
        return f"{best:.4g} GB/s is less than --min-busbw {self._least:g}" if best < self._least else ""

    def _code(self, curves: Sequence[Curve]) -> int:
        if self.interrupted:
            return 128 + self.interrupted
        if self.failed:
            return self.failed
        wrong = any(row.wrong for curve in curves for row in curve.rows)
        return EXIT_TOO_SLOW if wrong or self._missed(curves) else 0

    def _draw(self, curves: Sequence[Curve], said: Sequence[str]) -> None:
        title = f"allranks bench: {', '.join(dict.fromkeys(name for curve in curves for name in curve.collectives))}"
        if self._png:
            from allranks.bench.plot import png

            png(curves, Path(self._png), title)
            self._say(f"picture: {self._png}")
        if self._html:
            from allranks.cli.page.curves import page

            Path(self._html).write_text(page(title, curves, said, datetime.now().astimezone()), encoding="utf-8")
            self._say(f"page: {self._html}")

    # ---- groups of nodes

    def group(self, message: Mapping[str, Any], names: Sequence[str]) -> None:
        """One group of a round."""
        nodes = message["nodes"]
        who = " - ".join(f"{node} ({names[node]})" for node in nodes[:4]) + (
            f" and {len(nodes) - 4} more" if nodes[4:] else ""
        )
        how = f"{message['busbw']:8.3f} GB/s" if message["busbw"] is not None else f"  failed: {message['why']}"
        self._say(f"round {message['round']}: {how}  nodes {who}")

    def judged(
        self,
        speeds: Mapping[tuple[int, ...], float | None],
        whys: Mapping[tuple[int, ...], str],
        names: Sequence[str],
        *,
        complete: bool,
    ) -> int:
        """Who is slow or broken; the exit code is 1 when anybody is."""
        found = pairs.judge(speeds, least=self._least or 0.0)
        said = pairs.words(found, names, speeds, "GB/s")
        if not said:
            said = [
                f"all nodes are alike: the best pair has {found.best:.3g} GB/s, none less than {pairs.SLOW:.0%} of it"
            ]
        if not complete:
            said.insert(0, "it did not run to its end")
        for line in said:
            self._say(f"verdict: {line}")
        if self._output:
            groups = [{"nodes": list(group), "busbw": speed, "why": whys[group]} for group, speed in speeds.items()]
            slow = {
                "slow": list(found.slow),
                "broken": list(found.broken),
                "links": [list(pair) for pair in found.links],
            }
            unsure = [list(pair) for pair in found.unsure]
            value = {"names": list(names), "groups": groups, **slow, "unsure": unsure, "verdict": said}
            out.write({**value, "complete": complete}, self._output)
        if self.interrupted or self.failed:
            return 128 + self.interrupted if self.interrupted else self.failed
        return 0 if found.is_fine else EXIT_TOO_SLOW
