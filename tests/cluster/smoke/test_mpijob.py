"""The MPI Operator: real sshd, real mpirun."""

from __future__ import annotations

import pytest

from tests.cluster.smoke.conftest import Agrees, Smoke

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("manifest", ["mpijob", "mpijob-nonroot"])
def test_mpirun_starts_ranks_on_two_workers_that_reduce_together(manifest: str, smoke: Smoke, agrees: Agrees) -> None:
    gang = smoke(f"{manifest}.yaml")
    gang.await_condition("mpijob", "mpi", "Succeeded")
    assert "".join(gang.logs().values()).count("ALLREDUCE") == 4
    agrees("mpi-operator", manifest)
