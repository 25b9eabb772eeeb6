"""How a node of a PyTorchJob learns its place.

``RANK`` counts pods there and ``WORLD_SIZE`` processes, so only the first is any use: it must be what
``PET_NODE_RANK`` says.
"""

from __future__ import annotations

from allranks.node.place import NoPlace, Place, Surroundings


def place(around: Surroundings) -> Place:
    """The place of a pod: the master is node 0. Raises NoPlace."""
    if ":" in around.text("PET_NNODES"):
        raise NoPlace(f"PET_NNODES is {around.env['PET_NNODES']}: the job has an elasticPolicy, a gang has one size")
    around.must_count(around.number("PET_NNODES"), "PET_NNODES")
    around.agree("PET_NODE_RANK", "RANK")
    coordinator = around.agree("MASTER_ADDR", "PET_MASTER_ADDR")
    return around.place(around.number("PET_NODE_RANK"), coordinator, "PET_NODE_RANK")
