"""Who of a service's gangs is there, and what outlives them: attempts, restarts used, causes. Values alone, no Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allranks.node.cause import Cause, utc
from allranks.node.status import Status
from allranks.spec.service import KEY_VARIABLE

SILENT = 4.0
"""Seconds after which a coordinator that says nothing is taken to be gone: two beats and its longest wait."""
MOST_CAUSES = 20
LOADING = "the model is being loaded"


@dataclass
class Seat:
    """The place of one gang. ``attempt``, ``used`` and ``causes`` are what earlier gangs here have left behind.

    ``gone`` is the gang that was lost last: what it still says must not make it one that is there. ``ready`` is set by
    a probe too, which may be ahead of what the coordinator says (``told_ready``): only a change of that takes it back.
    ``ends`` is whether the service ends, so that no other will take its place.
    """

    number: int
    gang: str = ""
    attempt: int = -1
    used: int = 0
    causes: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""
    ready: bool = False
    told_ready: bool = False
    over: str = ""
    lost: str = ""
    ends: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    heard: float = 0.0
    busy: int = 0
    gone: str = ""

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.heard > SILENT

    @property
    def serves(self) -> bool:
        """Whether requests can be taken there."""
        return bool(self.address and self.ready and not self.over and not self.lost and not self.silent)

    def why_not(self) -> str:
        """Why it does not serve."""
        if self.over:
            return self.over
        if self.lost:
            return self.lost
        if not self.gang:
            return "Ray has not placed it yet"
        if self.silent:
            return f"its coordinator has said nothing for {time.monotonic() - self.heard:.1f} s"
        phase = self.status.get("phase", "")
        return str(self.status.get("reason") or (LOADING if phase == "running" else phase) or "it starts")

    def vacate(self, why: str) -> None:
        """Its gang is gone: the loss of it is one restart, beside what its agents had used."""
        self._count()
        cause = Cause(max(self.attempt, 0), "node_lost", utc(), why, exit=1)
        self.causes = [*self.all_causes(), cause.to_json()][-MOST_CAUSES:]
        self.used += 1
        self.gone, self.gang, self.address = self.gang, "", ""
        self.ready, self.told_ready, self.status = False, False, {}

    def left(self) -> dict[str, Any]:
        """What is to be known of it where a door after this one starts with nothing, and whether it has a gang."""
        self._count()
        return {"gang": self.gang, "attempt": self.attempt, "used": self.used, "causes": self.all_causes()}

    def _count(self) -> None:
        if self.status:
            self.attempt = max(self.attempt, int(self.status["attempt"]))
            self.used = max(self.used, int(self.status["restarts"]["used"]))

    def all_causes(self) -> list[dict[str, Any]]:
        """Those of earlier gangs and of this one.

        Its agents were told of an attempt before them, and say that it was
        lost, not why: that is known here.
        """
        known = {cause["attempt"] for cause in self.causes if cause["kind"] == "node_lost"}
        new = self.status.get("causes", ())
        return [*self.causes, *(one for one in new if one["kind"] != "node_lost" or one["attempt"] not in known)]


class Seats:
    """All gangs of a service, as they are told to the door."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self.ready_path = str(told["ready"])
        self.key = ""
        left = told.get("left") or [{}] * told["replicas"]
        self._all = [Seat(number, **known) for number, known in enumerate(left)]

    @property
    def _lacks_key(self) -> bool:
        """Whether no gang may start: without the key that it is to have, it would be open to everybody."""
        return bool(self._told["wants_key"] and not self.key)

    def taken(self) -> list[Seat]:
        return [seat for seat in self._all if seat.gang]

    def end(self) -> None:
        """All gangs are told to end, and no other will take their place."""
        for seat in self._all:
            seat.ends = True

    def pick(self) -> Seat | None:
        """The least busy of those that serve."""
        return min((seat for seat in self._all if seat.serves), key=lambda seat: seat.busy, default=None)

    def why(self) -> str:
        """Why none serves, in a line."""
        if self._lacks_key:
            return f"the service's key is not there yet: variable {KEY_VARIABLE} of Ray's hosts, or whoever started it"
        many = len(self._all) > 1
        return "; ".join(f"gang {seat.number}: {seat.why_not()}" if many else seat.why_not() for seat in self._all)

    # ---- coordinators

    def join(self, gang: str) -> dict[str, Any]:
        """A seat for a new gang; ``wait`` says that there is none yet, ``over`` that there will be none."""
        if self._lacks_key:
            return {"wait": "the key"}
        seat = next((one for one in self._all if one.gang == gang), None) or self._free()
        if seat is None:
            return {"wait": "a seat"}
        allowed = int(self._told["gang"]["restarts"])
        if seat.used > allowed:
            seat.over = seat.over or self._given_up(seat, allowed)
            return {"over": seat.over}
        seat.gang, seat.heard, seat.lost = gang, time.monotonic(), ""
        found = {"number": seat.number, "attempt": seat.attempt, "used": seat.used, "causes": seat.causes}
        return {**found, "key": self.key}

    def _free(self) -> Seat | None:
        for seat in self._all:
            if seat.over and not seat.gang:
                return seat
            if seat.gang and seat.silent:
                seat.vacate(seat.lost or "the gang's coordinator was lost")
        return next((seat for seat in self._all if not seat.gang), None)

    def _given_up(self, seat: Seat, allowed: int) -> str:
        last = seat.causes[-1]["message"] if seat.causes else ""
        return f"{last}; no restart is left of {allowed}"

    def hear(self, gang: str, report: Mapping[str, Any]) -> int:
        """Take a coordinator's word; one that a new door does not know brings its seat along. Returns its number."""
        base = report.get("seat") or {}
        number = int(base.get("number", 0))
        seat = self._all[min(number, len(self._all) - 1)]
        if seat.gang not in ("", gang) or gang == seat.gone or (not seat.gang and seat.over):
            return seat.number  # it was given up for lost
        seat.gang, seat.heard = gang, time.monotonic()
        seat.attempt = max(seat.attempt, int(base.get("attempt", -1)))
        seat.used, seat.causes = max(seat.used, int(base.get("used", 0))), seat.causes or list(base.get("causes", ()))
        self.key = self.key or base.get("key", "")
        seat.address, seat.status = report.get("address", ""), report.get("status") or seat.status
        told = bool(report.get("ready", seat.told_ready))
        if told != seat.told_ready:
            seat.ready = seat.told_ready = told
        seat.over = report.get("over", "") or seat.over
        if report.get("lost"):
            seat.lost = report["lost"]
            seat.vacate(seat.lost)
        return seat.number

    # ---- the whole

    def state(self) -> dict[str, Any]:
        """Status of the service as one run: nodes and ranks of all gangs, counted on."""
        return {
            "status": self._status().to_json(),
            "wants_key": self._lacks_key,
            "serves": self.pick() is not None,
            "placed": bool(self.taken()),
            "left": [seat.left() for seat in self._all],
        }

    def _status(self) -> Status:
        gang = self._told["gang"]
        found = Status(gang["run"], "ray", world_size=gang["nodes"] * gang["ranks_per_node"] * len(self._all))
        each = [self._of(seat) for seat in self._all]
        worst = max(each, key=lambda one: WORST.index(one.phase))
        found.phase, found.reason, found.exit_code = worst.phase, worst.reason, worst.exit_code
        found.attempt = max(one.attempt for one in each)
        found.restarts = {"used": max(one.restarts["used"] for one in each), "allowed": gang["restarts"]}
        found.causes = sorted((cause for one in each for cause in one.causes), key=lambda cause: cause.at)
        found.nodes = [node for one in each for node in one.nodes]
        found.attempts = each[0].attempts
        found.transport = each[0].transport
        return found

    def _of(self, seat: Seat) -> Status:
        """One gang's status, its nodes and ranks numbered after those of the gangs before it."""
        gang = self._told["gang"]
        status = Status.from_json(seat.status) if seat.status else Status(gang["run"], "ray", "starting")
        status.attempt = max(status.attempt, seat.attempt, 0)
        status.restarts = {"used": max(status.restarts["used"], seat.used), "allowed": gang["restarts"]}
        status.causes = [Cause.from_json(cause) for cause in seat.all_causes()]
        if seat.over:
            status.phase, status.reason, status.exit_code = "failed", seat.over, status.exit_code or 1
        elif not seat.gang:
            status.phase, status.reason = ("restarting" if seat.used else "pending"), seat.why_not()
        elif seat.silent:
            status.phase, status.reason = "restarting", seat.why_not()
        elif status.phase == "running" and not seat.ready:
            status.phase, status.reason = "starting", LOADING
        for node in status.nodes:
            node.node += seat.number * gang["nodes"]
            for rank in node.ranks:
                rank.rank += seat.number * gang["nodes"] * gang["ranks_per_node"]
        return status


WORST = ("succeeded", "running", "idle", "starting", "pending", "restarting", "cancelled", "failed")
"""A service is as well as its worst gang."""
