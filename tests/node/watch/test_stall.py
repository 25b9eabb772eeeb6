"""When it is a hang: time counts only while a rank waits and nothing moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.node.gangs import FakeGang

TIMEOUT = 10.0


class ReportingGang(FakeGang):
    """A gang of 2 x 2 that runs; ranks are where ``numbers`` says, and those in ``waiting`` wait."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(hang_timeout=TIMEOUT, lease=1e9, **changes)
        self.gather()
        self.run()
        self.numbers = dict.fromkeys(range(4), 0)
        self.waiting: set[int] = set()
        self.silent: dict[int, float] = {}
        self.saved: dict[str, str] = {}
        self.coordinator.stall.save = lambda attempt, name, text: self.saved.update({name: text})

    def passes(self, seconds: float) -> None:
        """Let time pass as it does: agents report every second, and answer a look at once."""
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            self.silent = {rank: silence + 1.0 for rank, silence in self.silent.items()}
            self.report()
            self.coordinator.tick()
            self.answer()
            self.coordinator.tick()

    def report(self) -> None:
        for agent in self.agents:
            ranks = [self._progress(rank) for rank in self._ranks_of(agent.node)]
            agent.says(self.coordinator, "progress", attempt=self.coordinator.last_attempt, ranks=ranks)

    def answer(self) -> None:
        for agent in self.agents:
            look = agent.last("look")
            if look is None:
                continue
            agent.told.remove(look)
            for rank in self._ranks_of(agent.node):
                account = self._account(rank)
                agent.says(self.coordinator, "account", attempt=look["attempt"], keep=look["keep"], account=account)
            agent.says(self.coordinator, "looked", attempt=look["attempt"], keep=look["keep"])

    def _ranks_of(self, node: int) -> list[int]:
        assert self.coordinator.attempt is not None
        return [rank for rank in (2 * node, 2 * node + 1) if rank not in self.coordinator.attempt.deaths]

    def _completed(self, rank: int) -> int:
        return self.numbers[rank] - (1 if rank in self.waiting else 0)

    def _progress(self, rank: int) -> Mapping[str, Any]:
        return {
            "rank": rank, "entered": self.numbers[rank], "completed": self._completed(rank),
            "waits": rank in self.waiting, "silent": self.silent.get(rank, 0.0), "state": "S", "rss": 1,
        }  # fmt: skip

    def _account(self, rank: int) -> Mapping[str, Any]:
        answers = rank not in self.silent
        group = {
            "members": [[0, 3, 1]], "entered": self.numbers[rank], "completed": self._completed(rank),
            "waits": rank in self.waiting, "operation": "all_reduce", "sizes": ["[4]"],
        }  # fmt: skip
        return {
            "rank": rank, "node": rank // 2, "pid": 1, "state": "S", "channel": "", "rss": 1, "tail": ["last words"],
            "silent": self.silent.get(rank, 0.0), "watched": True, "where": "train.py:40 misbehave",
            "sums": [self.numbers[rank], self._completed(rank)] if answers else None,
            "groups": {"0": group} if answers else {}, "left": None,
        }  # fmt: skip

    def waits_for(self, late: int) -> None:
        """All but one have entered the next collective."""
        self.waiting = {0, 1, 2, 3} - {late}
        for rank in self.waiting:
            self.numbers[rank] += 1

    @property
    def is_broken(self) -> bool:
        return self.coordinator.state == "stopping"


def suspected() -> ReportingGang:
    """A gang whose ranks have waited for rank 1 for too long: the agents are told to look, and have not yet."""
    g = ReportingGang()
    g.waits_for(1)
    g.passes(TIMEOUT)
    g.clock.now += 1
    g.report()
    g.coordinator.tick()
    return g


def test_a_collective_that_one_rank_never_enters_ends_the_attempt() -> None:
    g = ReportingGang()
    g.waits_for(1)
    g.passes(TIMEOUT)
    assert not g.is_broken
    g.passes(1)
    assert g.is_broken
    assert g.agents[1].last("stop")
    g.idle()
    (cause,) = g.coordinator.causes
    assert (cause.kind, cause.rank, cause.node, cause.exit) == ("hang", 1, 0, 1)
    assert cause.message.startswith("rank 1 on node 0 had not entered all_reduce #1 that 3 ranks wait in; it was in")
    assert (cause.tail, cause.log) == (("last words",), "/nonexistent/logs/attempt-0/rank-1.log")
    assert (g.coordinator.used, g.coordinator.last_attempt) == (1, 1)
    assert g.saved["table.txt"].startswith("rank 1 on node 0 had not entered")


def test_a_hang_without_budget_ends_the_run_with_1() -> None:
    g = ReportingGang(restarts=0)
    g.waits_for(3)
    g.passes(TIMEOUT + 1)
    g.idle()
    assert g.coordinator.verdict is not None
    assert (g.coordinator.verdict.phase, g.coordinator.verdict.code) == ("failed", 1)


def test_a_pause_of_the_whole_gang_may_last_as_long_as_it_likes() -> None:
    g = ReportingGang()
    g.passes(100 * TIMEOUT)
    assert not g.is_broken
    assert g.agents[0].last("look") is None


def test_a_pause_of_one_rank_that_others_wait_for_must_be_shorter_than_hang_timeout() -> None:
    g = ReportingGang()
    for _ in range(5):
        g.waits_for(0)
        g.passes(TIMEOUT - 1)
        g.numbers[0] += 1
        g.waiting = set()
        g.passes(1)
    assert not g.is_broken


def test_time_before_anyone_waits_does_not_count() -> None:
    g = ReportingGang()
    g.passes(TIMEOUT - 1)
    g.waits_for(1)
    g.passes(TIMEOUT)
    assert not g.is_broken


def test_a_straggler_is_named_long_before_it_is_a_hang_and_forgotten_when_it_moves() -> None:
    g = ReportingGang()
    g.waits_for(1)
    g.passes(TIMEOUT / 3)
    assert g.coordinator.status.straggler is None
    g.passes(2)
    straggler = g.coordinator.status.straggler
    assert straggler
    assert (straggler.rank, straggler.node) == (1, 0)
    assert straggler.message.startswith(
        "rank 1 on node 0 had not entered all_reduce #1 that 3 ranks wait in; it was in"
    )
    assert not g.is_broken
    assert g.saved == {}
    g.numbers[1] += 1
    g.passes(1)
    assert g.coordinator.status.straggler is None


def test_a_glance_that_a_look_overtakes_is_not_taken_for_it() -> None:
    g = suspected()
    for agent in g.agents:
        agent.says(g.coordinator, "looked", attempt=0, keep=False)
    g.coordinator.tick()
    assert not g.is_broken
    g.answer()
    g.coordinator.tick()
    assert g.is_broken


def test_the_status_tells_memory_and_collectives_a_second_of_running_ranks_only() -> None:
    g = ReportingGang()
    for _ in range(12):
        g.numbers[0] += 3
        g.passes(1)
    ranks = [rank for node in g.coordinator.status.nodes for rank in node.ranks]
    assert [rank.rss for rank in ranks] == [1, 1, 1, 1]
    assert [rank.rate for rank in ranks] == [3.0, None, None, None]
    g.dies(3)
    assert g.coordinator.status.nodes[1].ranks[1].rss is None


def test_the_status_tells_when_each_attempt_started_ran_and_ended() -> None:
    g = ReportingGang()
    g.dies(3)
    g.idle()
    first, second = g.coordinator.status.attempts
    assert first.attempt == 0
    assert first.started <= first.running <= first.ended <= second.started
    assert (second.attempt, second.running, second.ended) == (1, "", "")


def test_while_any_rank_moves_nobody_hangs() -> None:
    g = ReportingGang()
    g.waits_for(1)
    for _ in range(50):
        g.numbers[1] += 1  # in a group of its own
        g.passes(1)
    assert not g.is_broken


def test_a_silent_rank_is_a_hang_before_any_collective() -> None:
    g = ReportingGang()
    g.silent = {2: 0.0}
    g.passes(TIMEOUT - 1)
    assert not g.is_broken
    g.passes(1)
    assert g.is_broken
    g.idle()
    assert "rank 2 on node 1 has not answered for 10.0 s" in g.coordinator.causes[0].message


def test_a_rank_that_answers_again_was_not_hung() -> None:
    g = ReportingGang()
    for _ in range(5):
        g.silent = {2: 0.0}
        g.passes(TIMEOUT - 1)
        g.silent = {}
        g.passes(1)
    assert not g.is_broken


def test_what_moves_while_we_look_is_no_hang() -> None:
    g = suspected()
    assert g.agents[0].last("look")
    g.clock.now += 0.1
    g.numbers[1] += 1
    g.answer()
    g.coordinator.tick()
    assert not g.is_broken


def test_waiting_that_the_accounts_do_not_confirm_is_no_hang() -> None:
    g = suspected()
    g.waiting, g.numbers = set(), dict.fromkeys(range(4), 1)
    g.answer()
    g.coordinator.tick()
    assert not g.is_broken


def test_an_agent_that_does_not_answer_the_look_delays_the_verdict_by_two_seconds() -> None:
    g = suspected()
    g.agents[1].told.clear()
    g.answer()
    g.coordinator.tick()
    assert not g.is_broken
    g.clock.now += 2.1
    g.coordinator.tick()
    assert g.is_broken
    g.idle()
    assert g.coordinator.causes[0].rank == 1


def test_a_rank_that_has_ended_well_and_is_awaited_is_named() -> None:
    g = ReportingGang()
    g.passes(1)
    g.dies(1, kind="exit", message="exited with code 0", exit=0, signal=None)
    g.waits_for(1)
    g.passes(TIMEOUT + 1)
    g.idle()
    assert "rank 1 on node 0 has ended and never entered all_reduce #1" in g.coordinator.causes[0].message


def test_a_death_in_the_midst_of_a_look_is_the_cause() -> None:
    g = suspected()
    g.dies(3)
    g.answer()
    g.coordinator.tick()
    g.idle()
    (cause,) = g.coordinator.causes
    assert (cause.kind, cause.rank) == ("signal", 3)


def test_each_attempt_starts_with_a_clean_table() -> None:
    g = ReportingGang()
    g.waits_for(1)
    g.passes(TIMEOUT + 1)
    g.idle()
    g.run()
    g.numbers, g.waiting = dict.fromkeys(range(4), 0), set()
    g.passes(3 * TIMEOUT)
    assert not g.is_broken
    assert g.coordinator.last_attempt == 1


def test_reports_of_an_earlier_attempt_are_nothing() -> None:
    g = ReportingGang()
    g.agents[0].says(g.coordinator, "progress", attempt=7, ranks=[{"nonsense": 1}])
    g.passes(1)


@pytest.mark.parametrize(
    "ranks",
    [[{}], [{"rank": 2}], [{"rank": 0, "entered": "x", "completed": 0, "waits": 0, "silent": 0}], 7],
)
def test_a_malformed_report_is_refused(ranks: Any) -> None:
    g = ReportingGang()
    with pytest.raises((KeyError, TypeError, ValueError)):
        g.agents[0].says(g.coordinator, "progress", attempt=0, ranks=ranks)
