"""The nodes of a cluster are checked and measured as a gang of it, by the same verbs as on one machine."""

from __future__ import annotations

from tests.cluster.engines.conftest import Space


def test_doctor_checks_pods_and_the_ways_between_them(space: Space) -> None:
    done = space.allranks("doctor", "--engine", "jobset", "--spec", str(space.spec()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in done.stdout.splitlines() if line.startswith("error")]


def test_bench_measures_between_pods(space: Space) -> None:
    spec = str(space.spec(ranks_per_node=1))
    done = space.allranks("bench", "all_reduce", "--engine", "jobset", "--spec", spec, "--max-size", "64K")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Out of bounds values : 0 OK" in done.stdout
