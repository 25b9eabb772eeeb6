"""What a seed means: a gang, its program and the faults it meets, one an attempt."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.chaos.faults import BY_NAME, FAULTS, LEASE, SHOCKS, Drawn, Fault

SHAPES = ((2, 1), (2, 2), (3, 1), (4, 1), (2, 1), (3, 2))
STEPS, EVERY = 24, 4


@dataclass(frozen=True)
class Draw:
    """``program`` is torch or plain; ``network`` gives every node a network namespace and an init of its own.

    ``patience`` is how long to wait for a cause, in seconds.
    """

    seed: int
    nodes: int
    ranks: int
    program: str
    network: bool
    attached: bool
    restarts: int
    faults: tuple[Drawn, ...]
    hang_timeout: float = 3.0
    lease: float = LEASE
    patience: float = 60.0

    @property
    def world(self) -> int:
        return self.nodes * self.ranks

    @property
    def shocks(self) -> int:
        return sum(1 for fault in self.faults if fault.shock)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Draw:
        return cls(**{**data, "faults": tuple(Drawn(**fault) for fault in data["faults"])})

    def __str__(self) -> str:
        where = "network" if self.network else "attached" if self.attached else "detached"
        faults = ", ".join(
            f"{f.name} ({f.rank}/{f.node}{', early' if f.early else ''}{f', then {f.shock}' if f.shock else ''})"
            for f in self.faults
        )
        return f"{self.nodes}x{self.ranks} {self.program} {where}, restarts {self.restarts}: {faults or 'nothing'}"


def draw(seed: int, machine: frozenset[str]) -> Draw:
    """The run of a seed, the same each time on a machine that has the same (``tmpfs``, ``network``, ...)."""
    dice = random.Random(seed)
    network = dice.random() < 0.2
    nodes, ranks = dice.choice(SHAPES)
    program = dice.choice(("torch", "torch", "plain"))
    attached = dice.random() < 0.5
    count = dice.choice((0, 1, 1, 2, 2, 2, 3, 3, 3, 4))
    spent = dice.random() < 0.15
    network = network and "network" in machine
    has = set(machine - {"network"}) | ({"network"} if network else {"attached" if attached else "detached", "local"})
    faults, attempt = [], 0
    for _ in range(count):
        fault, drawn = _fault(dice, has, program, nodes, ranks, attempt)
        faults.append(drawn)
        attempt += fault.expected(drawn) is not None
        if fault.ends:
            break
    shocked = not faults or not BY_NAME[faults[-1].name].ends
    if shocked and attempt and dice.random() < 0.2 and BY_NAME[faults[-1].name].expected(faults[-1]):
        faults[-1] = replace(faults[-1], shock=dice.choice(SHOCKS), wait=dice.uniform(0, 1.5))
        attempt += 1
    elif spent and attempt and BY_NAME[faults[-1].name].expected(faults[-1]):
        attempt -= 1
    restarts = attempt
    return Draw(seed, nodes, ranks, program, network, attached and not network, restarts, tuple(faults))


def _fault(
    dice: random.Random, has: set[str], program: str, nodes: int, ranks: int, attempt: int
) -> tuple[Fault, Drawn]:
    """Where it strikes first, then what can strike there."""
    rank = dice.randrange(nodes * ranks)
    node = rank // ranks
    here = has | {program, "other" if node else "first"}
    here |= {"saves"} if program == "plain" or rank == 0 else set()
    here |= {"majority"} if nodes * ranks > 2 else set()
    possible = [fault for fault in FAULTS if fault.needs <= here]
    fault = dice.choices(possible, [fault.weight for fault in possible])[0]
    early = dice.random() < 0.2 and fault.strike is not None
    after, wait, code = dice.randint(1, 40), dice.uniform(0, 0.5), dice.randint(1, 125)
    drawn = Drawn(fault.name, attempt, rank, node, after, wait, early, code)
    return fault, drawn
