"""The Training Operator's PyTorchJob."""

from __future__ import annotations

from tests.cluster.smoke.conftest import Agrees, Smoke


def test_torchrun_forms_the_gang_from_what_the_operator_gives_and_no_arguments(smoke: Smoke, agrees: Agrees) -> None:
    gang = smoke("pytorchjob.yaml")
    gang.await_condition("pytorchjob", "ptj", "Succeeded")
    assert "".join(gang.logs().values()).count("ALLREDUCE of 4 ranks") == 1
    agrees("training-operator", "pytorchjob")
