"""A cluster for the tests that need one, and for each of them a namespace that is gone afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import stopgap
from tests.cluster.namespace import Namespace, await_gone, delete_abandoned

OUT = Path(__file__).resolve().parents[2] / "out" / "cluster"
NO_CLUSTER = "no cluster: "


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the operators' contracts anew instead of comparing")


@pytest.fixture(scope="session")
def cluster() -> stopgap.Cluster:
    """The one that runs; else one that is booted for this session; else the test is skipped."""
    if reason := stopgap.why_not():
        pytest.skip(f"{NO_CLUSTER}{reason}")
    return stopgap.running()


@pytest.fixture(scope="session")
def ended(cluster: stopgap.Cluster) -> Iterator[list[str]]:
    """The names of namespaces whose deletion has begun; the session ends when they are gone."""
    delete_abandoned(cluster)
    names: list[str] = []
    yield names
    await_gone(cluster, names)


@pytest.fixture
def namespace(cluster: stopgap.Cluster, ended: list[str], request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own. If the test fails, what explains it is under out/cluster."""
    mine = Namespace(cluster, request.node.name)
    yield mine
    mine.end()
    ended.append(mine.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Iterator[None]:
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
