"""JobSet: an Indexed Job with names, and nothing else."""

from __future__ import annotations

from tests.cluster.smoke.conftest import Agrees, Smoke


def test_the_pods_of_a_jobset_find_each_other_by_name(smoke: Smoke, agrees: Agrees) -> None:
    gang = smoke("jobset.yaml")
    gang.await_condition("jobset", "js", "Completed")
    assert "".join(gang.logs().values()).count("PEER") == 2
    agrees("jobset", "jobset")
