"""A gang whose pods are all made anew goes on with its budget, its causes and its numbers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from allranks.node import ledger
from allranks.node.account import Account
from allranks.node.cause import Cause
from allranks.node.keeper import KEY, Keeper
from allranks.node.ledger import Ledger, settle
from tests.node.api import Server
from tests.node.gangs import FakeGang

KILLED = Cause(0, "signal", "", "rank 1 was killed", rank=1, node=0)
DELETED = Cause(1, "node_lost", "", "node 1: its pod gang-w-0-1 was deleted", node=1)
UNKNOWN = "jobset has made all pods anew for the 1st time: one was lost; which one is not known"


def broken(gang: FakeGang) -> FakeGang:
    """A gang that has used one restart for a rank, and whose node 1 is told to go in the attempt after that."""
    gang.gather()
    gang.run()
    gang.dies(1)
    gang.idle()
    gang.run()
    gang.agents[1].says(gang.coordinator, "bye", why="its pod gang-w-0-1 was deleted")
    return gang


def anew(known: Ledger | None, sets: int, **changes: int) -> FakeGang:
    """The next set of pods, gathered."""
    gang = FakeGang(engine="jobset", **changes)
    settled = settle(known, sets, "jobset")
    gang.coordinator.remember(settled)
    for agent in gang.agents:
        agent.hello(gang.coordinator, attempt=1000 * sets - 1, used=sets - 1)
    gang.coordinator.tick()
    return gang


def told(gang: FakeGang) -> tuple[int, int, list[tuple[int, int | None]]]:
    c = gang.coordinator
    return c.last_attempt, c.used, [(cause.attempt, cause.node) for cause in c.causes]


@pytest.mark.parametrize("ranks_are_gone", [False, True], ids=["while its ranks are ended", "after that"])
def test_a_loss_that_the_coordinator_saw_is_counted_once(ranks_are_gone: bool) -> None:
    before = broken(FakeGang(engine="jobset", restarts=5))
    if ranks_are_gone:
        before.agents[0].says(before.coordinator, "idle", attempt=1)
        before.clock.now += 2
        before.coordinator.tick()
    kept = ledger.read(json.loads(json.dumps(ledger.entry(before.coordinator, 0))))
    assert len(kept.owed) == (0 if ranks_are_gone else 1)
    after = anew(kept, 1, restarts=5)
    assert told(after) == (1000, 2, [(0, 0), (1, 1)])
    assert after.coordinator.causes[1].message == "node 1: its pod gang-w-0-1 was deleted"


def test_a_coordinator_that_went_without_a_word_was_the_loss() -> None:
    after = anew(Ledger(0, 1, 1, (KILLED,)), 1, restarts=5)
    assert told(after) == (1000, 2, [(0, 0), (1, 0)])


def test_sets_that_never_ran_count_too() -> None:
    after = anew(Ledger(0, 1, 2, (KILLED, DELETED)), 3, restarts=5)
    assert told(after) == (3000, 4, [(0, 0), (1, 1), (1999, None), (2999, None)])
    lost_before_it_ran = Ledger(3, 2999, 4, tuple(after.coordinator.causes))
    assert told(anew(lost_before_it_ran, 4, restarts=5))[:2] == (4000, 5)


def test_a_rank_that_fell_is_not_what_pods_are_made_anew_for() -> None:
    assert told(anew(Ledger(0, 0, 1, (KILLED,)), 1, restarts=5)) == (1000, 2, [(0, 0), (999, None)])


def test_a_gang_that_remembers_nothing_says_so_and_blames_nobody() -> None:
    after = anew(None, 1, restarts=5)
    assert told(after) == (1000, 1, [(999, None)])
    assert after.coordinator.causes[0].message.startswith(UNKNOWN)


def test_pods_that_are_back_without_a_restart_of_the_engine_go_on_too() -> None:
    """A queue may take a gang's pods and let it in again."""
    kept = Ledger(0, 1, 1, (KILLED,), (DELETED,))
    gang = FakeGang(engine="jobset", restarts=5)
    gang.coordinator.remember(settle(kept, 0, "jobset"))
    gang.gather()
    assert told(gang) == (2, 2, [(0, 0), (1, 1)])


def test_the_last_restart_is_the_end_also_over_a_set() -> None:
    after = anew(Ledger(0, 1, 1, (KILLED,), (DELETED,)), 1, restarts=1)
    assert after.coordinator.phase == "failed"
    assert after.coordinator.reason == "node 1: its pod gang-w-0-1 was deleted (restarts: 1 of 1 used)"


def test_a_gang_that_stays_begins_its_next_command_with_a_whole_budget() -> None:
    gang = FakeGang(engine="jobset", stays=True)
    gang.coordinator.remember(settle(Ledger(0, 1, 1, (KILLED,), (DELETED,)), 1, "jobset"))
    assert told(gang) == (999, 0, [(0, 0), (1, 1)])


def test_what_is_kept_is_bounded() -> None:
    g = FakeGang()
    g.coordinator.causes = [replace(KILLED, attempt=n, tail=("x" * 500,) * 20) for n in range(50)]
    kept = json.dumps(ledger.entry(g.coordinator, 0))
    assert len(kept) < ledger.LARGEST + 200
    assert ledger.read(json.loads(kept)).causes[-1].attempt == 49


def test_the_keeper_writes_what_is_new_once_and_the_next_one_reads_it(server: Server, account: Account) -> None:
    lines: list[str] = []
    g = FakeGang(restarts=5)

    async def keep() -> None:
        keeper = Keeper(account, "gang", 0, lines.append)
        assert keeper.read() is None
        keeper.begin(g.coordinator)
        await keeper.finish()
        broken(g)
        await keeper.finish()
        await keeper.finish()

    asyncio.run(keep())
    assert [method for method, _, _ in server.asked] == ["GET", "PATCH"]
    assert server.asked[1][1] == "/api/v1/namespaces/team/configmaps/gang-allranks-ledger"

    async def again() -> Ledger | None:
        return Keeper(account, "gang", 1, lines.append).read()

    found = asyncio.run(again())
    assert found is not None
    assert (found.attempt, found.used, len(found.causes), len(found.owed)) == (1, 1, 1, 1)
    assert not lines


def test_a_ledger_that_cannot_be_written_is_said_once(server: Server, account: Account) -> None:
    lines: list[str] = []
    g = FakeGang()
    server.code = 403

    async def keep() -> None:
        keeper = Keeper(account, "gang", 0, lines.append)
        keeper.begin(g.coordinator)
        broken(g)
        await keeper.finish()
        await keeper.finish()

    asyncio.run(keep())
    (line,) = lines
    assert "not kept in ConfigMap gang-allranks-ledger: the API server refused PATCH" in line
    assert KEY not in server.kept
