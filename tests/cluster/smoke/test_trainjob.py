"""Kubeflow Trainer, whose TrainJobs become JobSets."""

from __future__ import annotations

import json

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Object
from tests.cluster.smoke.conftest import Agrees, Smoke

ROOT = {"user": "0", "home": "/root", "sshd": "[/usr/sbin/sshd, -De]"}
USER = {"user": "1000", "home": "/home/mpiuser", "sshd": "[/usr/sbin/sshd, -De, -f, /home/mpiuser/.sshd_config]"}


# How a TrainJob changes the pods of its runtime; the field has another name and another shape since 2.2.
SELECTED = {"kubernetes.io/os": "linux"}
POD: Object = {"template": {"spec": {"template": {"spec": {"nodeSelector": SELECTED}}}}}
PATCH: Object = {"template": {"spec": {"replicatedJobs": [{"name": "node", **POD}]}}}
OVERRIDES: dict[str, Object] = {
    "2.1": {"podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": SELECTED}}]},
    "2.2": {"runtimePatches": [{"manager": "allranks.dev/test", "trainingRuntimeSpec": PATCH}]},
}


def test_torchrun_forms_the_gang_from_what_trainer_gives_and_no_arguments(
    cluster: Cluster, smoke: Smoke, agrees: Agrees
) -> None:
    ((field, value),) = OVERRIDES[cluster.trainer].items()
    gang = smoke("trainjob-torch.yaml", override=f"{field}: {json.dumps(value)}")
    gang.await_condition("trainjob", "tj", "Complete")
    gang.await_said("ALLREDUCE of 4 ranks")
    assert [pod["spec"].get("nodeSelector") for pod in gang.list("pods")] == [SELECTED, SELECTED]
    agrees("trainer", "trainjob-torch")


# 255: seen with v2.2.0, the operator's key has mode 0644, which ssh refuses to the user who owns it.
@pytest.mark.parametrize(("entry", "who", "key"), [("trainjob-mpi", ROOT, 255), ("trainjob-mpi-nonroot", USER, 0)])
def test_mpirun_reaches_the_node_of_the_mpi_policy(
    entry: str, who: dict[str, str], key: int, smoke: Smoke, agrees: Agrees
) -> None:
    gang = smoke("trainjob-mpi.yaml", ssh=f"{who['home']}/.ssh", **who)
    assert f"THE KEY AS IT IS: {key}" in gang.await_said("OF 4 ON", times=4)
    agrees("trainer", entry)
    gang.go("jobset.sigs.k8s.io/replicatedjob-name=launcher")
    gang.await_condition("trainjob", "tjm", "Complete")
