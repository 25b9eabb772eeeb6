"""The MPI Operator: real sshd, real mpirun."""

from __future__ import annotations

from tests.cluster.smoke.conftest import Agrees, Smoke


def test_mpirun_starts_ranks_on_two_workers_that_reduce_together(smoke: Smoke, agrees: Agrees) -> None:
    gang = smoke("mpijob.yaml")
    assert "THE KEY AS IT IS: 0" in gang.await_said("ALLREDUCE of 4 ranks")
    agrees("mpi-operator", "mpijob")
    gang.go("training.kubeflow.org/job-role=launcher")
    gang.await_condition("mpijob", "mpi", "Succeeded")


def test_an_unprivileged_user_has_sshd_and_mpirun_too(smoke: Smoke, agrees: Agrees) -> None:
    gang = smoke("mpijob-nonroot.yaml")
    assert "THE KEY AS IT IS: 0" in gang.await_said("OF 4 ON", times=4)
    agrees("mpi-operator", "mpijob-nonroot")
    gang.go("training.kubeflow.org/job-role=launcher")
    gang.await_condition("mpijob", "mpi", "Succeeded")
