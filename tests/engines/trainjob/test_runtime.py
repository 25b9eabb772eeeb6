"""Runtimes that the cluster has, and whether a gang can run on them."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.engines.trainjob.runtime import why_not

FOUND: list[dict[str, Any]] = [
    {"metadata": {"name": "torch-distributed"}, "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}}},
    {"metadata": {"name": "deepspeed-distributed"}, "spec": {"mlPolicy": {"mpi": {"runLauncherAsNode": True}}}},
    {"metadata": {"name": "plain"}, "spec": {}},
]


def test_a_runtime_with_the_torch_policy_holds_a_gang() -> None:
    assert why_not("torch-distributed", FOUND) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deepspeed-distributed", "deepspeed-distributed has the mpi policy"),
        ("plain", "plain has no policy that numbers its pods"),
        ("gone", "no ClusterTrainingRuntime gone; there are: deepspeed-distributed, plain, torch-distributed"),
    ],
)
def test_other_runtimes_are_refused_with_those_that_would_do(name: str, said: str) -> None:
    reason = why_not(name, FOUND)
    assert said in reason
    assert "take one with the torch policy (torch-distributed)" in reason
