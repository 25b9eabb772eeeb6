"""What outlives a gang on Ray: who has which seat, what was used up, and how a service of several gangs is told."""

from __future__ import annotations

from typing import Any

from allranks.engines.ray import seats
from allranks.engines.ray.seats import Seats
from allranks.node.cause import Cause
from allranks.node.status import NodeStatus, RankStatus, Status

TOLD: dict[str, Any] = {
    "gang": {"run": "chat", "nodes": 1, "ranks_per_node": 2, "restarts": 2},
    "replicas": 1, "ready": "/ready", "wants_key": False,
}  # fmt: skip


def report(attempt: int = 0, used: int = 0, **more: Any) -> dict[str, Any]:
    ranks = [RankStatus(0, 0, 11, "running"), RankStatus(1, 1, 12, "running")]
    nodes = [NodeStatus(0, "h", "127.0.0.1", "running", ranks=ranks)]
    status = Status("chat", "ray", "running", attempt=attempt, restarts={"used": used, "allowed": 2}, nodes=nodes)
    return {"status": status.to_json(), "address": "127.0.0.1:1", "ready": True, **more}


def test_a_lost_gang_costs_one_restart_and_the_next_one_knows_what_was_used() -> None:
    door = Seats(TOLD)
    assert door.join("a")["used"] == 0
    door.hear("a", report(attempt=1, used=1))
    assert door.pick() is not None
    door.hear("a", report(attempt=1, used=1, lost="node 0: its actor is gone"))
    assert door.pick() is None
    assert door.why() == "node 0: its actor is gone"
    door.hear("a", report(attempt=1, used=1))  # sent before its last word, and heard after it
    assert door.taken() == []
    seat = door.join("b")
    assert (seat["attempt"], seat["used"]) == (1, 2)
    told = door.state()["status"]
    assert [cause["message"] for cause in told["causes"]] == ["node 0: its actor is gone"]


def test_no_gang_starts_once_the_restarts_are_used_up() -> None:
    door = Seats(TOLD)
    door.join("a")
    door.hear("a", report(used=2, lost="node 0: its actor is gone"))
    assert door.join("b") == {"over": "node 0: its actor is gone; no restart is left of 2"}
    status = door.state()["status"]
    assert (status["phase"], status["exit_code"]) == ("failed", 1)


def test_a_gang_whose_coordinator_is_silent_is_not_asked_and_its_seat_is_taken(monkeypatch: Any) -> None:
    door = Seats(TOLD)
    door.join("a")
    door.hear("a", report())
    assert door.join("b") == {"wait": "a seat"}
    monkeypatch.setattr(seats, "SILENT", -1.0)
    assert door.pick() is None
    assert "has said nothing for" in door.why()
    assert door.join("b")["used"] == 1
    door.hear("a", report())  # it was only slow: its word counts no more
    assert door.taken()[0].gang == "b"


def test_a_new_door_learns_from_the_coordinators_what_the_old_one_knew() -> None:
    cause = Cause(0, "node_lost", "2026-01-01T00:00:00.000Z", "why").to_json()
    door = Seats({**TOLD, "wants_key": True})
    assert door.join("z") == {"wait": "the key"}
    assert "variable ALLRANKS_API_KEY of Ray's hosts" in door.why()
    base = {"number": 0, "attempt": 3, "used": 1, "causes": [cause], "key": "sesame"}
    door.hear("a", report(attempt=4, used=1, seat=base))
    assert door.key == "sesame"
    status = door.state()["status"]
    assert (status["attempt"], status["restarts"], status["causes"]) == (4, {"used": 1, "allowed": 2}, [cause])


def test_a_gang_that_starts_again_in_place_is_asked_nothing_until_it_says_that_it_serves() -> None:
    door = Seats({**TOLD, "replicas": 2})
    for number, gang in enumerate("ab"):
        door.join(gang)
        door.hear(gang, report(seat={"number": number}))
    door.hear("a", report(seat={"number": 0}, ready=False))
    assert [seat.gang for seat in door.taken() if seat.serves] == ["b"]


def test_a_word_from_before_a_good_probe_does_not_take_it_back() -> None:
    door = Seats(TOLD)
    door.join("a")
    door.hear("a", report(ready=False))
    (seat,) = door.taken()
    seat.ready = True  # by a probe
    for ready, serves in ((False, True), (True, True), (False, False)):
        door.hear("a", report(ready=ready))
        assert seat.serves == serves


def test_what_a_lost_cluster_leaves_is_counted_on_a_new_one() -> None:
    door = Seats(TOLD)
    door.join("a")
    door.hear("a", report(attempt=1, used=1))
    (left,) = door.state()["left"]
    seat = seats.Seat(0, **left)
    seat.vacate("the raylet was lost")
    after = Seats({**TOLD, "left": [seat.left()]})
    found = after.join("b")
    assert (found["attempt"], found["used"]) == (1, 2)
    assert [cause["message"] for cause in after.state()["status"]["causes"]] == ["the raylet was lost"]


def test_what_the_agents_say_of_a_loss_is_not_told_twice() -> None:
    door = Seats(TOLD)
    door.join("a")
    door.hear("a", report(lost="its host is gone"))
    door.join("b")
    agents = Cause(0, "node_lost", "2026-01-01T00:00:00.000Z", "node 0: the coordinator was lost", node=0).to_json()
    later = report(attempt=1, used=1)
    later["status"]["causes"] = [agents]
    door.hear("b", later)
    assert [cause["message"] for cause in door.state()["status"]["causes"]] == ["its host is gone"]


def test_the_ranks_of_several_gangs_are_counted_on_and_requests_go_to_the_least_busy() -> None:
    door = Seats({**TOLD, "replicas": 2})
    for gang in "ab":
        number = door.join(gang)["number"]
        door.hear(gang, report(seat={"number": number}))
    first = door.pick()
    assert first is not None
    first.busy += 1
    assert door.pick() is not first
    status = door.state()["status"]
    assert status["world_size"] == 4
    assert [rank["rank"] for node in status["nodes"] for rank in node["ranks"]] == [0, 1, 2, 3]
    assert [node["node"] for node in status["nodes"]] == [0, 1]
