"""What Serve imports: ``allranks.engines.ray.app:build``, an application of one door and ``replicas`` gangs."""

from __future__ import annotations

from typing import Any

from ray import serve
from starlette.types import Receive, Scope, Send

from allranks.engines.ray.door import Door, live
from allranks.engines.ray.gang import Gang

_doors: list[Door] = []
"""The one door of a replica's process: Serve wants an application before it has made the deployment's object."""


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Requests, and the application's own start and end."""
    if scope["type"] == "lifespan":
        await live(receive, send)
    else:
        await _doors[-1].answer(scope, receive, send)


def application() -> Any:
    """What Serve calls for the application."""
    return answer


class Entrance:
    """The door as a deployment."""

    def __init__(self, told: dict[str, Any], *others: Any) -> None:
        self._door = Door(told)
        _doors.append(self._door)

    async def join(self, gang: str) -> dict[str, Any]:
        """A gang's coordinator is there and wants a seat."""
        return self._door.join(gang)

    async def report(self, gang: str, report: dict[str, Any]) -> None:
        """What a coordinator tells twice a second."""
        self._door.report(gang, report)

    async def give_key(self, key: str) -> None:
        """From whoever started the service: it is in memory here, and nowhere else."""
        self._door.seats.key = key

    async def end(self) -> None:
        """The service will be deleted, says whoever will: afterwards nobody can reach the door."""
        self._door.seats.end()

    async def state(self, since: int) -> dict[str, Any]:
        """The service as one run, and its lines from number ``since`` on."""
        return {**self._door.seats.state(), **self._door.lines(since)}


class Presence:
    """Nothing, on every host: Serve opens its HTTP port only where it has a replica.

    KubeRay sends requests to all pods, and calls a worker ready by that port: one that has only ranks never would be.
    """


def build(told: dict[str, Any]) -> Any:
    """The application. ``told`` is ``plan.told``; what it says of ``door`` and ``gangs`` are Serve's own options."""
    door = serve.deployment(serve.ingress(application)(Entrance)).options(name="door", **told["door"])
    gangs = serve.deployment(Gang).options(name="gang", **told["gangs"])
    if not told["hosts"]:
        return door.bind(told, gangs.bind(told))
    everywhere = {"num_replicas": told["hosts"], "max_replicas_per_node": 1, "ray_actor_options": {"num_cpus": 0}}
    presence = serve.deployment(Presence).options(name="presence", **everywhere)
    return door.bind(told, gangs.bind(told), presence.bind())
