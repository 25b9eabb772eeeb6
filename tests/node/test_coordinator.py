"""The whole gang starts, ends and starts again as one, and the budget is counted exactly."""

from __future__ import annotations

import time

import pytest

from allranks.node.ask import answer
from allranks.node.coordinator import Coordinator
from allranks.node.rollcall import Refused
from tests.node.gangs import Clock, FakeAgent, FakeGang, make_gang

RESET = {
    "kind": "exception", "message": "RuntimeError: Connection reset by peer", "exit": 1, "signal": None, "echo": True,
}  # fmt: skip


def test_nobody_starts_before_everybody_is_here() -> None:
    g = FakeGang()
    g.agents[0].hello(g.coordinator)
    g.coordinator.tick()
    assert g.coordinator.phase == "pending"
    assert g.coordinator.reason == "roll call: 1 of 2 nodes here, waiting for node 1"
    g.agents[1].hello(g.coordinator, ready=False, waiting_for="importing torch")
    g.coordinator.tick()
    assert g.coordinator.reason == "node 1: importing torch"
    assert not any(agent.last("start") for agent in g.agents)
    g.agents[1].says(g.coordinator, "ready", ready=True)
    g.coordinator.tick()
    assert g.agents[0].last("start")


def test_node_0_starts_first_and_the_others_once_its_store_listens() -> None:
    g = FakeGang()
    g.gather()
    assert g.agents[0].last("start")
    assert g.agents[1].last("start") is None
    g.agents[0].says(g.coordinator, "listening", attempt=0)
    assert g.agents[1].last("start") == g.agents[0].last("start")


def test_all_ranks_ending_with_0_is_success() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    assert g.coordinator.phase == "running"
    for rank in range(4):
        g.dies(rank, kind="exit", message="exited with code 0", exit=0, signal=None)
    status = g.coordinator.status
    assert (status.phase, status.exit_code, status.causes) == ("succeeded", 0, [])
    assert g.agents[1].last("finish") is not None


def test_one_death_ends_all_ranks_and_the_next_attempt_has_a_new_port() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    first = g.agents[0].last("start")
    g.dies(2)
    assert all(agent.last("stop") for agent in g.agents)
    assert g.coordinator.phase == "restarting"
    g.idle()
    second = g.agents[0].last("start")
    assert first
    assert second
    assert second["attempt"] == 1
    assert second["port"] != first["port"]
    cause = g.coordinator.causes[0]
    assert (cause.attempt, cause.rank, cause.node, cause.signal, cause.exit) == (0, 2, 1, "SIGKILL", 137)


def test_the_next_attempt_waits_for_the_last_rank_of_the_old_one() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(2)
    g.agents[0].says(g.coordinator, "idle", attempt=0)
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 0


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_the_budget_is_counted_exactly(restarts: int) -> None:
    g = FakeGang(restarts=restarts)
    g.gather()
    for _ in range(restarts):
        g.run()
        g.dies(1)
        g.idle()
        assert g.coordinator.verdict is None
    g.run()
    g.dies(1)
    g.idle()
    status = g.coordinator.status
    assert (status.phase, status.exit_code, status.attempt) == ("failed", 137, restarts)
    assert status.restarts == {"used": restarts, "allowed": restarts}
    assert [cause.attempt for cause in status.causes] == list(range(restarts + 1))


def test_two_deaths_in_one_attempt_cost_one_restart() -> None:
    g = FakeGang(restarts=3)
    g.gather()
    g.run()
    g.dies(2)
    g.dies(3)
    g.idle()
    assert g.coordinator.used == 1


def test_a_final_exit_code_ends_the_run_whatever_restarts_are_left() -> None:
    g = FakeGang(restarts=3, final=(65,))
    g.gather()
    g.run()
    g.dies(0, kind="exit", message="exited with code 75", exit=75, signal=None)
    g.dies(3, kind="exit", message="exited with code 65", exit=65, signal=None)
    g.idle()
    verdict = g.coordinator.verdict
    assert verdict is not None
    assert (verdict.phase, verdict.code, g.coordinator.used) == ("failed", 65, 0)
    assert "rank 3 on node 1: exited with code 65" in verdict.reason
    assert "0 of 3 used; no other would mend it" in verdict.reason


def test_the_same_code_of_a_gang_for_which_it_is_not_final_costs_a_restart() -> None:
    g = FakeGang(restarts=3)
    g.gather()
    g.run()
    g.dies(3, kind="exit", message="exited with code 65", exit=65, signal=None)
    g.idle()
    assert (g.coordinator.verdict, g.coordinator.used) == (None, 1)


def test_the_first_death_is_the_cause_and_the_rest_are_secondary() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(3)
    g.dies(0, **RESET)
    g.idle()
    cause = g.coordinator.causes[0]
    assert cause.rank == 3
    assert [(s.rank, s.message) for s in cause.secondary] == [(0, "RuntimeError: Connection reset by peer")]


def test_a_survivors_connection_error_heard_first_is_still_not_the_cause() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(0, **RESET)
    g.dies(3)
    g.idle()
    assert g.coordinator.causes[0].rank == 3


def test_a_rank_that_was_asked_to_stop_is_never_blamed() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(0, **RESET)
    g.dies(1, kind="signal", message="killed by SIGTERM", exit=143, signal="SIGTERM", asked=True)
    g.idle()
    cause = g.coordinator.causes[0]
    assert cause.rank == 0
    assert cause.secondary == ()


def test_a_rank_that_was_silent_until_it_was_ended_is_named_and_not_the_one_that_missed_it() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(0, kind="exit", message="exited with code 75", exit=75, signal=None, echo=True, missed=1)
    g.dies(1, kind="signal", message="killed by SIGKILL", exit=137, signal="SIGKILL", asked=True)
    g.idle()
    cause = g.coordinator.causes[0]
    assert (cause.rank, cause.kind, cause.signal, cause.exit) == (1, "hang", None, 75)
    assert cause.message.startswith("rank 1 on node 0: gave no sign of life, and was ended; rank 0 had noticed")
    assert [s.rank for s in cause.secondary] == [0]


def test_a_rank_that_left_with_0_is_named_before_those_that_miss_it() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(1, kind="exit", message="exited with code 0", exit=0, signal=None)
    g.dies(0, **RESET)
    g.dies(3, **RESET)
    g.idle()
    cause = g.coordinator.causes[0]
    assert (cause.kind, cause.rank, cause.node, cause.exit) == ("exit", 1, 0, 1)
    assert cause.message == (
        "rank 1 on node 0 had ended with 0 while the others still worked; then rank 0: "
        "RuntimeError: Connection reset by peer"
    )
    assert [s.rank for s in cause.secondary] == [0, 3]


def test_a_rank_that_left_with_0_is_not_to_blame_for_what_another_broke_itself() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(1, kind="exit", message="exited with code 0", exit=0, signal=None)
    g.dies(0, **RESET)
    g.dies(3, kind="exception", message="ValueError: no", exit=1, signal=None)
    g.idle()
    assert g.coordinator.causes[0].rank == 3


def test_a_rank_that_ended_with_0_because_it_was_asked_to_is_no_cause() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(0, **RESET)
    g.dies(1, kind="exit", message="exited with code 0", exit=0, signal=None)
    g.idle()
    assert g.coordinator.causes[0].rank == 0


def test_a_lost_node_breaks_the_attempt_and_its_replacement_rejoins() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    assert g.agents[1].member
    g.coordinator.lost(g.agents[1].member, "its connection closed", silent=False)
    assert g.agents[0].last("stop")
    g.agents[0].says(g.coordinator, "idle", attempt=0)
    g.coordinator.tick()
    FakeAgent(g.gang, 1, "second").hello(g.coordinator)
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 0, "the lost agent's ranks may still be ending"
    g.clock.now += 0.5
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 1
    assert g.coordinator.causes[0].kind == "node_lost"
    assert g.coordinator.causes[0].node == 1


def test_a_lost_agents_successor_says_how_it_ended() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    assert g.agents[1].member
    g.coordinator.lost(g.agents[1].member, "its connection closed", silent=False)
    g.agents[0].says(g.coordinator, "idle", attempt=0)
    g.coordinator.tick()
    assert not g.coordinator.causes, "a moment is left for the successor's word"
    FakeAgent(g.gang, 1, "second").hello(g.coordinator, earlier="was killed by SIGKILL")
    g.coordinator.tick()
    assert g.coordinator.causes[0].message == "node 1: its agent was killed by SIGKILL"


def test_a_silent_node_is_lost_after_its_lease_and_fenced_for_another() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.clock.now += 4.9
    g.agents[0].says(g.coordinator, "beat", sent=1)
    g.coordinator.tick()
    assert g.coordinator.phase == "running"
    g.clock.now += 0.2
    g.coordinator.tick()
    assert g.agents[1].closed
    g.agents[0].says(g.coordinator, "idle", attempt=0)
    FakeAgent(g.gang, 1, "second").hello(g.coordinator)
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 0
    g.clock.now += 1.0
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 1


def test_the_same_agent_coming_back_lifts_the_fence() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.clock.now += 5.1
    g.agents[0].says(g.coordinator, "beat", sent=1)
    g.coordinator.tick()
    g.agents[0].says(g.coordinator, "idle", attempt=0)
    g.agents[1].hello(g.coordinator)
    g.coordinator.tick()
    assert g.coordinator.last_attempt == 1


def test_a_node_number_has_one_holder_and_the_other_waits() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    assert FakeAgent(g.gang, 1, "second").hello(g.coordinator) is None
    assert g.coordinator.phase == "running"


def test_an_agent_of_another_gang_is_refused_by_name_of_what_differs() -> None:
    g = FakeGang()
    with pytest.raises(Refused, match="run is 'other', here 'g'; nodes is 3, here 2"):
        g.agents[1].hello(g.coordinator, run="other", nodes=3)
    with pytest.raises(Refused, match=r"node 7 is not in 0\.\.1"):
        g.agents[1].hello(g.coordinator, node=7)


def test_a_gang_that_never_completes_ends_with_75_and_names_the_missing() -> None:
    g = FakeGang()
    g.agents[0].hello(g.coordinator)
    g.coordinator.refuse("pod-x (10.0.0.9)", "version is '2', here '1'")
    g.clock.now += 60.1
    g.agents[0].says(g.coordinator, "beat", sent=1)
    g.coordinator.tick()
    status = g.coordinator.status
    assert (status.phase, status.exit_code) == ("failed", 75)
    assert status.reason == (
        "the gang was not complete within 60 s (roll call: 1 of 2 nodes here, waiting for node 1"
        "; pod-x (10.0.0.9) was refused: version is '2', here '1')"
    )
    assert (status.causes[0].kind, status.causes[0].node) == ("start_timeout", 1)


def test_cancel_during_the_roll_call_finishes_at_once() -> None:
    g = FakeGang()
    g.agents[1].hello(g.coordinator)
    g.coordinator.cancel("cancelled by ann", 143)
    assert g.coordinator.status.phase == "cancelled"
    assert g.agents[1].last("finish")


@pytest.mark.parametrize("moment", ["start", "run", "stop"])
def test_cancel_ends_all_ranks_first(moment: str) -> None:
    g = FakeGang()
    g.gather()
    if moment != "start":
        g.run()
    if moment == "stop":
        g.dies(1)
    g.coordinator.cancel("cancelled by ann", 143)
    assert not g.coordinator.status.is_over
    g.idle()
    status = g.coordinator.status
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", "cancelled by ann", 143)
    assert status.causes[-1].kind == "cancelled"
    assert g.coordinator.last_attempt == 0


def test_cancel_twice_keeps_the_first_reason() -> None:
    g = FakeGang()
    g.coordinator.cancel("first", 143)
    g.coordinator.cancel("second", 130)
    assert g.coordinator.status.reason == "first"


def test_the_deadline_ends_the_run_with_124() -> None:
    g = FakeGang(deadline=60.0)
    g.coordinator = Coordinator(g.gang, lambda: 20000, clock=g.clock, began=g.clock.now - 57)
    g.gather()
    g.run()
    g.clock.now += 2
    g.coordinator.tick()
    assert g.coordinator.status.phase == "running"
    g.clock.now += 2
    g.coordinator.tick()
    g.idle()
    status = g.coordinator.status
    assert (status.phase, status.exit_code, status.causes[-1].kind) == ("failed", 124, "deadline")


def test_a_cause_is_kept_before_the_next_attempt_starts() -> None:
    """A coordinator that is killed right after has told nobody else."""
    g = FakeGang()
    kept = []
    g.coordinator.keep = lambda: kept.append((g.coordinator.status, len(g.agents[0].told)))
    g.gather()
    g.run()
    g.dies(3)
    g.idle()
    ((status, told),) = kept
    assert (status.phase, status.restarts["used"], [cause.rank for cause in status.causes]) == ("restarting", 1, [3])
    assert g.agents[0].told[told]["type"] == "start"


def test_a_wall_clock_that_is_set_an_hour_on_is_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    g = FakeGang(deadline=60.0)
    g.gather()
    g.run()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    g.coordinator.tick()
    assert g.coordinator.status.phase == "running"


def test_an_agent_that_never_says_idle_does_not_hold_the_gang_for_ever() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    g.dies(2)
    for _ in range(18):
        g.clock.now += 1
        for agent in g.agents:
            agent.says(g.coordinator, "beat", sent=1)
        g.coordinator.tick()
    assert g.agents[1].closed
    assert g.coordinator.status.causes[0].rank == 2


def test_no_free_port_is_told_and_ends_the_run() -> None:
    def exhausted() -> int:
        raise OSError(98, "Address already in use")

    coordinator = Coordinator(make_gang(nodes=1), exhausted, clock=Clock())
    FakeAgent(coordinator.gang, 0).hello(coordinator)
    coordinator.tick()
    status = coordinator.status
    assert status.phase == "failed"
    assert status.causes[0].kind == "preflight"
    assert status.reason == "node 0 has no free port for rank 0's store: Address already in use"


def test_a_replaced_coordinator_goes_on_with_attempt_and_budget() -> None:
    g = FakeGang(restarts=3)
    g.gather()
    g.run()
    g.dies(0)
    g.idle()
    g.run()
    after = Coordinator(g.gang, lambda: 1, clock=g.clock, earlier=g.coordinator.status)
    for agent in g.agents:
        agent.hello(after, attempt=1, used=1)
    after.tick()
    after.tick()
    assert (after.last_attempt, after.used) == (2, 2)
    assert [(cause.attempt, cause.kind) for cause in after.causes] == [(0, "signal"), (1, "node_lost")]


def test_the_count_survives_a_coordinator_whose_record_is_lost() -> None:
    g = FakeGang(restarts=3)
    for agent in g.agents:
        agent.hello(g.coordinator, attempt=4, used=2)
    g.coordinator.tick()
    g.coordinator.tick()
    assert (g.coordinator.last_attempt, g.coordinator.used) == (5, 3)


def test_a_replaced_coordinator_with_a_spent_budget_fails_the_run() -> None:
    g = FakeGang(restarts=1)
    for agent in g.agents:
        agent.hello(g.coordinator, attempt=1, used=1)
    g.coordinator.tick()
    assert g.coordinator.status.phase == "failed"


def test_clocks_that_differ_are_noted() -> None:
    import time

    g = FakeGang()
    g.agents[1].hello(g.coordinator, clock=time.time() - 300)
    assert g.coordinator.status.notes == ["the clock of node 1 is -300.0 s from node 0's"]


def test_a_report_of_a_rank_of_another_node_is_a_protocol_error() -> None:
    g = FakeGang()
    g.gather()
    g.run()
    death = {"rank": 0, "node": 0, "kind": "exit", "message": "", "exit": 1, "tail": []}
    with pytest.raises(ValueError, match="node 1 has no rank 0"):
        g.agents[1].says(g.coordinator, "exit", attempt=0, death=death)


# A gang that stays


def staying() -> FakeGang:
    g = FakeGang(stays=True, restarts=3)
    g.gather()
    return g


def ready(g: FakeGang, command: int) -> None:
    for agent in g.agents:
        agent.says(g.coordinator, "ready", ready=True, command=command)
    g.coordinator.tick()


def test_a_gang_that_stays_is_idle_for_as_long_as_it_likes_and_then_runs_what_it_is_given() -> None:
    g = staying()
    for _ in range(100):
        g.clock.now += 1
        for agent in g.agents:
            agent.says(g.coordinator, "beat", sent=1)
        g.coordinator.tick()
    assert (g.coordinator.phase, g.coordinator.reason) == ("idle", "nothing ran yet")
    assert answer(g.coordinator, {"what": "exec", "argv": ["true"], "restarts": 0}) == {"command": 0, "attempt": 0}
    told = g.agents[1].last("command")
    assert told == {"type": "command", "command": 0, "argv": ["true"], "restarts": 0, "first": 0}
    ready(g, command=-1)
    assert not g.agents[0].last("start"), "they are ready for what was before"
    ready(g, command=0)
    assert g.agents[0].last("start")


def test_a_command_that_succeeds_leaves_the_gang_idle_once_its_ranks_are_swept() -> None:
    g = staying()
    g.coordinator.give(["true"], 0)
    ready(g, command=0)
    g.run()
    for rank in range(4):
        g.dies(rank, kind="exit", message="exited with code 0", exit=0, signal=None)
    assert all(agent.last("stop") for agent in g.agents)
    assert g.coordinator.phase == "running"
    g.idle()
    assert (g.coordinator.phase, g.coordinator.reason) == ("idle", "true succeeded")
    assert g.coordinator.status.exit_code is None
    g.coordinator.cancel("enough", 143)
    status = g.coordinator.status
    assert (status.phase, status.reason, status.causes) == ("cancelled", "enough", [])


def test_a_client_that_asks_can_end_the_whole_run_once() -> None:
    g = staying()
    request = {"what": "cancel", "reason": "by hand", "code": 130}
    assert answer(g.coordinator, request) == {"cancelled": g.gang.run}
    status = g.coordinator.status
    assert (status.phase, status.reason, status.exit_code) == ("cancelled", "by hand", 130)
    assert answer(g.coordinator, request) == {"refused": "the run is about to end"}


def test_a_replaced_coordinator_knows_the_command_and_that_it_was_lost_in_it() -> None:
    g = staying()
    g.coordinator.give(["true"], 0)
    ready(g, command=0)
    g.run()
    for restarted in (False, True):
        after = Coordinator(g.gang, lambda: 1, clock=g.clock, earlier=g.coordinator.status)
        for agent in g.agents:
            agent.hello(after, attempt=0, command=-1 if restarted else 0)
        after.tick()
        assert [(cause.attempt, cause.kind) for cause in after.causes] == [(0, "node_lost")]
        for agent in g.agents:
            agent.says(after, "ready", ready=True, command=0)
        assert (after.phase, after.status.commands[0].phase) == ("idle", "failed")
        assert after.give(["false"], 0).number == 1
        assert after.status.commands[1].attempt == 1
        for agent in g.agents:
            agent.says(after, "ready", ready=True, command=1)
        after.tick()
        assert after.last_attempt == 1


def test_a_gang_that_stays_still_gives_up_on_a_node_that_never_comes_back() -> None:
    g = staying()
    g.agents[1].says(g.coordinator, "bye", why="SIGTERM")
    for _ in range(70):
        g.clock.now += 1
        g.agents[0].says(g.coordinator, "beat", sent=1)
        g.coordinator.tick()
    status = g.coordinator.status
    assert (status.phase, status.exit_code, status.causes[0].kind) == ("failed", 75, "start_timeout")


def test_rank_0_of_a_service_that_ends_breaks_the_gang_with_0_too() -> None:
    g = FakeGang(serves=True, restarts=0)
    g.gather()
    g.run()
    g.dies(1, kind="exit", message="exited with code 0", exit=0, signal=None)
    assert g.coordinator.state == "running"
    g.dies(0, kind="exit", message="exited with code 0", exit=0, signal=None)
    for agent in g.agents:
        agent.says(g.coordinator, "idle", attempt=0)
    g.coordinator.tick()
    (cause,) = g.coordinator.causes
    assert (cause.rank, cause.exit, cause.message) == (
        0, 1, "rank 0 on node 0: ended with 0, and nobody had ended the service"
    )  # fmt: skip
