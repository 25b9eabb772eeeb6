"""What every smoke test has in its namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import contract
from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace, Object

HERE = Path(__file__).parent
Smoke = Callable[..., Namespace]
Agrees = Callable[..., None]


@pytest.fixture
def smoke(namespace: Namespace, tmp_path: Path) -> Smoke:
    """Apply one of this folder's YAML files to a namespace that has the programs which it runs."""
    namespace.files("programs", sorted((HERE / "programs").glob("*.*")))

    def apply(manifest: str, **values: str) -> Namespace:
        namespace.apply(HERE / manifest, tmp_path, **values)
        return namespace

    return apply


@pytest.fixture
def agrees(cluster: Cluster, namespace: Namespace, pytestconfig: pytest.Config) -> Agrees:
    """Hold what an operator has made against its contract, or record it."""

    def check(operator: str, entry: str, **inside: Object) -> None:
        write = bool(pytestconfig.getoption("--record"))
        contract.compare(operator, cluster.versions[operator], entry, contract.record(namespace, inside), write)

    return check
