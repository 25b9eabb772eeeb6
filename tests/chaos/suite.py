"""Runs of many seeds, each in namespaces of its own, and what came of them as a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.chaos.draw import Draw
from tests.chaos.harness import CGROUP

ROOT = Path(__file__).parents[2]
# All of it ends with the one that started it.
UNSHARE = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
AS_USER = ["--user", "--map-root-user"]
LONGEST = 400.0
CHECKS = ("cause", "budget", "resume", "result", "left")


def why_not() -> str:
    """Why no run can be made on this machine, or nothing."""
    missing = [name for name in ("setpriv", "unshare", "ip") if not shutil.which(name)]
    if missing:
        return f"chaos needs setpriv and unshare (util-linux) and ip (iproute2); missing: {', '.join(missing)}"
    done = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, timeout=20)
    return f"chaos needs namespaces of its own: {done.stderr.strip()}" if done.returncode else ""


def _unshare() -> list[str]:
    return UNSHARE if os.getuid() == 0 else [*UNSHARE, *AS_USER]


def machine(clock: Path | None) -> frozenset[str]:
    """What faults may need, of what is here."""
    there = {"tmpfs"}
    bridge = "ip link add bridge0 type bridge && ip link add v0 type veth peer name v1"
    probe = subprocess.run([*_unshare(), "sh", "-c", bridge], capture_output=True, timeout=20)
    if probe.returncode == 0 and shutil.which("bridge") and shutil.which("nsenter"):
        there.add("network")
    if clock is not None:
        there.add("clock")
    if os.access(CGROUP, os.W_OK) and (CGROUP / "memory.limit_in_bytes").exists() and find_spec("allranks.node.memory"):
        there.add("memory")
    return frozenset(there)


def build_clock(folder: Path) -> Path | None:
    """The library that sets a node's wall clock off; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True, timeout=60)
    return made


class Suite:
    """``scratch`` holds a folder a run, which stays where something is wrong with it."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self.clock = build_clock(scratch)
        self.machine = machine(self.clock)
        self.cache = scratch / "cache"

    def run(self, drawn: Draw) -> dict[str, Any]:
        """The report of one run."""
        folder = Path(tempfile.mkdtemp(prefix=f"seed-{drawn.seed}-", dir=self.scratch))
        (folder / "drawn.json").write_text(json.dumps(drawn.to_json()))
        command = [*_unshare(), sys.executable, "-m", "tests.chaos", "one", str(folder), str(self.clock or "")]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "PYTHONPATH": ""}
        with (folder / "harness.log").open("wb") as out:
            try:
                subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, env=environment, timeout=LONGEST)
            except subprocess.TimeoutExpired:
                out.write(f"the run took longer than {LONGEST:g} s\n".encode())
        if (CGROUP / folder.name).exists():
            (CGROUP / folder.name).rmdir()
        try:
            report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        except (OSError, ValueError):
            said = (folder / "harness.log").read_text()[-2000:]
            complaints = {check: [f"no report: {said}"] * (check == "result") for check in CHECKS}
            report = {"draw": drawn.to_json(), "says": str(drawn), "complaints": complaints, "seconds": 0, "causes": []}
        report["seed"], report["folder"] = drawn.seed, str(folder)
        if not any(report["complaints"].values()):
            shutil.rmtree(folder)
        return report


def table(reports: list[dict[str, Any]]) -> str:
    """What was asked for, of how many it held, and every failure with its seed."""

    def right(check: str) -> int:
        return sum(not report["complaints"][check] for report in reports)

    faults: dict[str, int] = {}
    for report in reports:
        for drawn in report["draw"]["faults"]:
            faults[drawn["name"]] = faults.get(drawn["name"], 0) + 1
    rows = [
        ("every cause right", "cause"), ("budget and exit code exact, never two attempts at once", "budget"),
        ("resumed from the newest whole checkpoint", "resume"),
        ("came to its end, with the undisturbed result", "result"),
        ("nothing left behind", "left"),
    ]  # fmt: skip
    lines = [f"{len(reports)} runs, {sum(faults.values())} faults, {sum(r['seconds'] for r in reports):.0f} s"]
    lines += [f"  {right(check):4} of {len(reports)}  {words}" for words, check in rows]
    lines += ["faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items()))]
    for report in reports:
        wrong = [f"{check}: {one}" for check in CHECKS for one in report["complaints"][check]]
        if wrong:
            lines += [f"seed {report['seed']}: {report['says']} ({report['folder']})", *(f"    {one}" for one in wrong)]
    return "\n".join(lines)
