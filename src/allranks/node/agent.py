"""One node's agent: dials the roll call, starts and ends this node's ranks as told, reports every end.

``Agent`` is the conversation with the coordinator; what the node holds is ``ranks.py``'s. When the conversation breaks,
the ranks are ended before it is taken up again: two attempts are never alive at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from allranks.node import ledger, processes, termination, wire
from allranks.node.cancel import EXIT_TERMINATED, read_cancel
from allranks.node.cause import Cause, utc
from allranks.node.files import say
from allranks.node.gang import Gang, load, read_secret
from allranks.node.launch.spawn import Start
from allranks.node.listen import Listener, new_incarnation
from allranks.node.place import NoPlace, Place, find_place
from allranks.node.ranks import Ranks
from allranks.node.status import Status
from allranks.node.verdict import EXIT_DONE, EXIT_GIVEN_UP

if TYPE_CHECKING:
    from allranks.node.check import Checker
    from allranks.node.free import Freeing
    from allranks.node.keeper import Keeper

REDIAL = 0.2
SLOT_TAKEN_PAUSE = 1.0
LISTEN_POLL = 0.003
LISTEN_WAIT = 1.0


def log(text: str) -> None:
    """One line into the agent's own log."""
    say(f"{time.strftime('%H:%M:%S')} {text}")


class Agent:
    """The node's conversation with the coordinator, from the first dial to the verdict.

    ``unfit`` says why the gang may not start on this node, and is empty where it may.
    """

    def __init__(self, gang: Gang, place: Place, secret: bytes, zygote: str, unfit: str = "") -> None:
        self.gang, self.place, self._secret, self._unfit = gang, place, secret, unfit
        self._incarnation = new_incarnation()
        self._wire: Optional[wire.Wire] = None
        self.ranks = Ranks(gang, place.node, zygote, self._tell)
        self.attempt, self.used = ledger.recall(gang, place.node)
        self._stopping: Optional[asyncio.Task[None]] = None
        self._looking: Optional[asyncio.Task[None]] = None
        self._leaving = False
        self.is_told = False
        self._checker: Optional[Checker] = None

    @property
    def is_heard(self) -> bool:
        """Whether there is a coordinator to talk to."""
        return self._wire is not None

    def _tell(self, **message: Any) -> None:
        if self._wire is not None:
            self._wire.send(**message)

    async def run(self) -> int:
        """Converse until the verdict; returns the agent's exit code."""
        self.ranks.open()
        give_up = time.monotonic() + self.gang.start_timeout
        why = "not tried"
        while time.monotonic() < give_up:
            if self._leaving:
                await asyncio.Event().wait()  # not again into a gang that this node leaves; whoever said so ends us
            try:
                self._wire = await self._dial()
            except (OSError, wire.WireError) as error:
                if str(error) != why:
                    why = str(error)
                    log(f"dialling {self.place.coordinator}:{self.gang.port}: {why}")
                await asyncio.sleep(REDIAL)
                continue
            code = await self._converse(self._wire)
            self._wire = None
            if self._leaving:
                continue
            if code == EXIT_DONE:
                await self.ranks.launcher_ends()
            await self._end_ranks(for_good=code is not None)
            if code is not None:
                return code
            give_up = time.monotonic() + self.gang.start_timeout
        reason = f"node 0: no coordinator for {self.gang.start_timeout:g} s ({why})"
        log(f"gave up: {reason}")
        self._leave_own_record(reason)
        return EXIT_GIVEN_UP

    async def _dial(self) -> wire.Wire:
        """Try every address the coordinator's name has now; a replaced node's old one may still be listed."""
        source = self.gang.addresses[self.place.node] if self.gang.engine == "local" and self.gang.addresses else None
        found = await asyncio.get_running_loop().getaddrinfo(
            self.gang.address_of(self.place.coordinator), self.gang.port, type=socket.SOCK_STREAM
        )
        error: Exception = OSError(f"{self.place.coordinator} has no address")
        for address in dict.fromkeys(str(info[4][0]) for info in found):
            try:
                return await wire.dial(address, self.gang.port, self._secret, source)
            except (OSError, wire.WireError) as failed:
                error = failed
        raise error

    async def _converse(self, line: wire.Wire) -> Optional[int]:
        """Until the connection or the lease ends (None) or the run does (an exit code)."""
        loop = asyncio.get_running_loop()
        self._lease_until = loop.time() + self.gang.lease
        line.send(
            type="hello", run=self.gang.run, nodes=self.gang.nodes, ranks_per_node=self.gang.ranks_per_node,
            version=self.gang.version, node=self.place.node, incarnation=self._incarnation,
            host=_host_name(self.gang, self.place.node), attempt=self.attempt, used=self.used, clock=time.time(),
            command=self.ranks.command, ready=self.ranks.ready, waiting_for=self.ranks.waiting_for,
            earlier=os.environ.get("ALLRANKS_EARLIER", ""),
        )  # fmt: skip
        if self.gang.preflight:
            self._check(line.own_address)
        if self._unfit:
            line.send(type="unfit", kind="transport", why=self._unfit)
        beats = asyncio.ensure_future(self._beat(line))
        try:
            while True:
                message = await asyncio.wait_for(line.receive(), max(0.001, self._lease_until - loop.time()))
                if message is None:
                    log("the coordinator hung up")
                    return None
                code = await self._follow(message)
                if code is not None:
                    return code if code >= 0 else None
        except asyncio.TimeoutError:
            log(f"no answer from the coordinator for {self.gang.lease:g} s: the lease has ended")
        except wire.WireError as error:
            log(f"the coordinator broke the protocol: {error}")
        finally:
            beats.cancel()
            line.close()
        return None

    def _check(self, address: str) -> None:
        from allranks.node.check import Checker  # only where it was asked for

        if self._checker is None:
            self._checker = Checker(self.gang, self.place.node, self._secret, self._tell)
        self._checking = asyncio.ensure_future(self._checker.check(address))

    async def _beat(self, line: wire.Wire) -> None:
        """A lease runs from the sending of the last heartbeat that was answered."""
        while True:
            line.send(type="beat", sent=asyncio.get_running_loop().time())
            await asyncio.sleep(self.gang.heartbeat)

    async def _follow(self, message: Mapping[str, Any]) -> Optional[int]:
        """Do what the coordinator says: an exit code ends the agent, -1 the conversation, None neither."""
        kind = message.get("type")
        if kind == "beat":
            self._lease_until = float(message["sent"]) + self.gang.lease
        elif kind == "start":
            await self._start(message)
        elif kind == "stop":
            self._stopping = asyncio.ensure_future(self._stop(int(message["attempt"])))
        elif kind == "probe" and self._checker is not None:
            self._checking = asyncio.ensure_future(self._checker.probe(message))
        elif kind == "command":
            self._take(message)
        elif kind == "look":
            self._looking = asyncio.ensure_future(
                self.ranks.sampler.look(int(message["attempt"]), bool(message["keep"]))
            )
        elif kind == "finish":
            log(f"finished: {message['phase']} {message['reason']}")
            self.leave_record(message["record"])
            self.is_told = True
            return EXIT_DONE if message["phase"] == "succeeded" else EXIT_GIVEN_UP
        elif kind == "wait":
            log(f"waiting: {message['why']}")
            await asyncio.sleep(SLOT_TAKEN_PAUSE)
            return -1
        elif kind == "refused":
            log(f"refused: {message['why']}")
            self._leave_own_record(f"node {self.place.node} was refused by the coordinator: {message['why']}")
            return EXIT_GIVEN_UP
        return None

    def leave_record(self, record: Mapping[str, Any]) -> None:
        """Write what this node leaves behind of the run."""
        try:
            termination.write(self.gang, self.place.node, record)
        except OSError as error:
            log(f"cannot leave the record of the run in {error.filename}: {error.strerror}")

    def _leave_own_record(self, reason: str) -> None:
        """Where there is no coordinator to say how it ended."""
        cause = Cause(max(self.attempt, 0), "node_lost", utc(), reason, node=0, exit=1)
        status = Status(self.gang.run, self.gang.engine, "failed", reason, causes=[cause], ended=utc(), exit_code=1)
        self.leave_record(termination.cut(status))

    def _take(self, message: Mapping[str, Any]) -> None:
        """Another command for the attempts to come: its budget is unspent."""
        self.used = 0
        command = replace(
            self.gang, argv=tuple(message["argv"]), restarts=int(message["restarts"]),
            first_attempt=int(message["first"]),
        )  # fmt: skip
        self.ranks.take(command, int(message["command"]))

    async def _start(self, message: Mapping[str, Any]) -> None:
        if self._checker is not None:
            self._checker.close()
        self.attempt, self.used = int(message["attempt"]), int(message["used"])
        try:
            ledger.remember(self.gang, self.place.node, self.attempt, self.used)
        except OSError as error:
            log(f"cannot keep the count of attempts in {self.gang.state}: {error.strerror}")
        start = Start(self.attempt, str(message["address"]), int(message["port"]))
        self.ranks.start(start)
        if self.place.node == 0 and self.gang.nodes > 1:
            self._watching = asyncio.ensure_future(self._watch_store(start))

    async def _watch_store(self, start: Start) -> None:
        """Say when rank 0's store listens, or when it is not worth waiting for any longer.

        mpirun starts no rank before all nodes have opened their doors to it.
        """
        until = time.monotonic() + (LISTEN_WAIT if self.gang.launcher != "mpirun" else 0.0)
        while time.monotonic() < until and self.ranks.alive and not processes.listening(start.port):
            await asyncio.sleep(LISTEN_POLL)
        self._tell(type="listening", attempt=start.attempt)

    async def _stop(self, attempt: int) -> None:
        await self.ranks.stop(self.gang.grace)
        self._tell(type="idle", attempt=attempt)

    async def _end_ranks(self, *, for_good: bool) -> None:
        """No conversation, no ranks: without a coordinator nobody may train on."""
        if self._stopping is not None:
            self._stopping.cancel()
        await self.ranks.stop(0.0, for_good=for_good)

    async def leave(self, why: str) -> None:
        """Say bye and end this node's ranks, with all the grace they have; never dial again."""
        self._leaving = True
        self._tell(type="bye", why=why)
        if self._wire is not None:
            await self._wire.flush()
        await self.ranks.stop(self.gang.grace, for_good=True)


def _host_name(gang: Gang, node: int) -> str:
    return gang.name_of(node) if gang.engine == "local" else socket.gethostname()


class Node:
    """The whole process: the agent, and on node 0 the coordinator beside it."""

    def __init__(self, gang: Gang, place: Place, zygote: str, listening: Optional[int], unfit: str = "") -> None:
        secret = read_secret(gang.state)
        self.gang = gang
        self.agent = Agent(gang, place, secret, zygote, unfit)
        self.listener: Optional[Listener] = None
        if listening is not None:
            self.listener = Listener(gang, secret, socket.socket(fileno=listening), self.agent.ranks.launcher_ends)
        self._freeing = self._may_free() if gang.force_delete else None
        self._keeper = self._keep(self.listener) if self.listener is not None and gang.engine != "local" else None

    def _may_free(self) -> Freeing:
        from allranks.node.account import Account
        from allranks.node.free import Freeing, LostPods

        return Freeing(LostPods(Account(), self.gang.run), self.agent.place.node, self._misses_somebody, self._tell)

    def _keep(self, listener: Listener) -> Optional[Keeper]:
        """Go on from what the coordinator before this one knew, and keep what is known from now on."""
        from allranks.node.account import Account
        from allranks.node.keeper import Keeper

        course, sets, known = listener.coordinator, ledger.sets_made(), None
        keeper = Keeper(Account(), self.gang.run, sets, self._tell) if self.gang.force_delete else None
        if not course.is_successor:
            try:
                known = keeper.read() if keeper is not None else None
            except (OSError, ValueError) as error:
                self._tell(f"what the gang had behind it could not be read: {error}")
        if keeper is not None:
            keeper.begin(course)
            listener.recorded = keeper.look
        if not course.is_successor:
            course.remember(ledger.settle(known, sets, self.gang.engine))
        return keeper

    def _misses_somebody(self) -> bool:
        if self.listener is None:
            return not self.agent.is_heard
        return len(self.listener.coordinator.roll.members) < self.gang.nodes

    def _tell(self, line: str) -> None:
        log(line)
        if self.listener is not None:
            self.listener.coordinator.note(line)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        agent = asyncio.ensure_future(self.agent.run())
        besides = [asyncio.ensure_future(one.run()) for one in (self._freeing, self._keeper) if one is not None]
        try:
            return await self._converse(loop, agent)
        finally:
            for one in besides:
                one.cancel()
            if self._keeper is not None:
                await self._keeper.finish()

    async def _converse(self, loop: asyncio.AbstractEventLoop, agent: asyncio.Task[int]) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_terminate, agent)
        if self.listener is None:
            code = await _result(agent)
            return EXIT_DONE if self.gang.closes and self.agent.is_told else code
        listener = asyncio.ensure_future(self.listener.run())
        await asyncio.wait([listener, agent], return_when=asyncio.FIRST_COMPLETED)
        agent.cancel()
        await self.agent.ranks.stop(0.0, for_good=True)
        if not listener.done():
            return await _result(agent)
        verdict = self.listener.coordinator.verdict
        if verdict is not None:
            self.agent.leave_record(self.listener.coordinator.record)
        return EXIT_DONE if verdict is not None and verdict.phase == "succeeded" else EXIT_GIVEN_UP

    def _on_terminate(self, agent: asyncio.Future[int]) -> None:
        """On this machine a signal means the run is cancelled, in a container that this node goes away."""
        if self.gang.engine != "local":
            self._leaving = asyncio.ensure_future(self._leave(agent))
        elif self.listener is not None:
            self.listener.coordinator.cancel(*read_cancel(self.gang.state))

    async def _leave(self, agent: asyncio.Future[int]) -> None:
        last = asyncio.ensure_future(self._freeing.leave()) if self._freeing is not None else None
        await self.agent.leave(f"its pod {socket.gethostname()} was deleted or evicted (SIGTERM)")
        if last is not None:
            await last
        agent.cancel()


async def _result(agent: asyncio.Task[int]) -> int:
    try:
        return await agent
    except asyncio.CancelledError:
        return EXIT_TERMINATED


def main(argv: List[str]) -> int:
    """``agent PLAN ZYGOTE [LISTENING-FD]``, with the place in what the engine gives its nodes."""
    processes.die_with_parent(signal.SIGKILL)
    gang = load(argv[0])
    listening = int(argv[2]) if len(argv) > 2 else None
    try:
        place = find_place(gang.identity or gang.engine, gang.nodes, os.environ)
    except NoPlace as error:
        log(f"cannot tell which node this is: {error} (read as engine {gang.identity or gang.engine})")
        return EXIT_GIVEN_UP
    unfit = ""
    if gang.rdma:
        from allranks.node import network  # not for the agents of this machine, whose start is counted in milliseconds

        try:
            gang, unfit = network.settle(gang, place.node, os.environ, log)
        except network.NotATree as error:
            log(f"cannot tell what this node's network is: {error}")
            return EXIT_GIVEN_UP

    async def live() -> int:  # made in the loop that it runs in: before Python 3.10 asyncio's events belong to one
        return await Node(gang, place, argv[1], listening, unfit).run()

    return asyncio.run(live())
