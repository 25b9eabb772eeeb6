"""What holds for every test: its own state and cache, no identity of an outer gang, and no process left behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import adopt_orphans, descendants, kill, wait_until_gone

ROOT = Path(__file__).resolve().parents[1]
IDENTITY = re.compile(
    r"((LOCAL_|NODE_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|LOCAL_SIZE|MASTER_\w+|(ALLRANKS|PET|TORCHELASTIC)_\w+)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the tests that take a minute or more each")
    parser.addoption("--fuzz-cases", type=int, default=150, metavar="N", help="requests of the HTTP fuzz  [150]")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: pytest --long runs it"))


def pytest_configure() -> None:
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a script has it ignored


@pytest.fixture(autouse=True)
def own_state(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Keep the user's runs, learned preload lists and rank variables out of the test, and the test out of theirs."""
    for name in list(os.environ):
        if IDENTITY.fullmatch(name):
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("xdg")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("KUBECONFIG", str(home / "no-kubeconfig"))  # no test asks whatever cluster the user has
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # else every rank compiles torch's modules anew
    # What torch compiles takes a minute and is the same for every test.
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(pytestconfig.cache.mkdir("torch_extensions")))
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def no_process_left(own_state: None) -> Iterator[None]:
    """Fail the test that leaves a descendant running, daemons included, and end what it left."""
    before = descendants(os.getpid())
    yield
    left = wait_until_gone(before, seconds=3)
    if left:
        lines = "\n".join(f"  {process}" for process in sorted(left, key=lambda p: p.pid))
        kill(left)
        wait_until_gone(before, seconds=5)
        pytest.fail(f"the test left {len(left)} processes behind:\n{lines}")
