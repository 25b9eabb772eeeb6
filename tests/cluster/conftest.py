"""A cluster for the tests that need one, and for each of them a namespace that is gone afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.components import TRAINERS, needed
from tests.cluster.errors import NotRunning
from tests.cluster.images.kinds import FOREIGN
from tests.cluster.layout import HOME
from tests.cluster.machine import why_not
from tests.cluster.namespace import Namespace, await_gone, delete_abandoned

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "out" / "cluster"
Reported = Generator[None, pytest.TestReport, pytest.TestReport]
NO_CLUSTER = "no cluster: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the operators' contracts anew instead of comparing")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whatever here needs a cluster has the mark `cluster`."""
    for item in items:
        if item.path.is_relative_to(HERE) and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The one that is up, left as it was; else one for this session; else the test is skipped."""
    try:
        yield Cluster.running()
    except NotRunning:
        if reason := why_not() or _not_built():
            pytest.skip(f"{NO_CLUSTER}{reason}")
        _run("up", seconds=600)
        yield Cluster.running()
        _run("down", seconds=120)


@pytest.fixture
def foreign(cluster: Cluster) -> str:
    """The name of the image that knows nothing of gangs; without it the test is skipped."""
    if not list((HOME / "images").glob("foreign-*.tar")):
        pytest.skip(f"{NO_CLUSTER}no image {FOREIGN}: `make cluster` tells why it cannot be made here")
    return FOREIGN


def _not_built() -> str:
    missing = [component.name for component in needed(next(iter(TRAINERS))) if not component.built]
    return f"not built are {', '.join(missing)}: `make cluster` does that, once, in half an hour" if missing else ""


def _run(verb: str, seconds: float) -> None:
    subprocess.run([sys.executable, "-m", "tests.cluster", verb], cwd=ROOT, check=True, timeout=seconds)


@pytest.fixture(autouse=True)
def no_process_left(own_state: None) -> None:
    """Instead of the check of all tests: what runs in pods goes with the namespace, which the session awaits."""


@pytest.fixture(scope="session")
def ended(cluster: Cluster) -> Iterator[list[str]]:
    """The names of namespaces whose deletion has begun; the session ends when they are gone."""
    delete_abandoned(cluster)
    names: list[str] = []
    yield names
    await_gone(cluster, names)


@pytest.fixture
def namespace(cluster: Cluster, ended: list[str], request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own. If the test fails, what explains it is under out/cluster."""
    mine = Namespace(cluster, request.node.name)
    yield mine
    mine.end()
    ended.append(mine.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Reported:
    report = yield
    mine = getattr(item, "funcargs", {}).get("namespace")
    if isinstance(mine, Namespace) and report.when == "call" and report.failed:
        folder = mine.keep(OUT / re.sub(r"\W+", "-", item.name).strip("-"))
        report.sections.append(("what the cluster knows of it", f"objects, events and logs are in {folder}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [
        report.longrepr[2].partition(NO_CLUSTER)[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_CLUSTER in report.longrepr[2]
    ]
    if reasons:
        terminalreporter.section("tests that need a cluster", red=True, bold=True)
        terminalreporter.line(f"{len(reasons)} WERE NOT RUN: {reasons[0]}")
