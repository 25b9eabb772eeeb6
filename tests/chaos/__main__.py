"""``python -m tests.chaos --runs 200 --seed 1``: break gangs as the seeds say, and print what came of it."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.draw import Draw, draw
from tests.chaos.harness import Harness
from tests.chaos.suite import Suite, table, why_not


def main() -> int:
    if sys.argv[1:2] == ["one"]:
        return one(*sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next ones count on")
    parser.add_argument("--scratch", type=Path, help="a folder of its own, for what the runs write")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--draw", action="store_true", help="only print what the seeds mean")
    args = parser.parse_args()
    unable = why_not()
    if unable:
        print(unable, file=sys.stderr)
        return 69
    suite = Suite(args.scratch or Path(tempfile.mkdtemp(prefix="allranks-chaos-", dir="/var/tmp")))
    seeds = range(args.seed, args.seed + args.runs)
    if args.draw:
        print("\n".join(f"{seed}: {draw(seed, suite.machine)}" for seed in seeds))
        return 0
    reports = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for report in pool.map(lambda seed: suite.run(draw(seed, suite.machine)), seeds):
            reports.append(report)
            verdict = "; ".join(one for found in report["complaints"].values() for one in found) or "ok"
            print(f"seed {report['seed']}: {report['says']}: {verdict} ({report['seconds']:.0f} s)", flush=True)
    print(table(reports))
    return 1 if any(any(report["complaints"].values()) for report in reports) else 0


def one(folder: str, clock: str) -> int:
    """Inside the namespaces: the run that the folder has the draw of; leaves its report there, as JSON."""
    drawn = Draw.from_json(json.loads(Path(folder, "drawn.json").read_text()))
    report = Harness(drawn, Path(folder), Path(clock) if clock else None).run()
    Path(folder, "report.json").write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
