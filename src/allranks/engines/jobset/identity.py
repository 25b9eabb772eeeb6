"""How a node of a JobSet learns its place: Kubernetes numbers the pods of an Indexed Job, the host name has it too."""

from __future__ import annotations

from allranks.node.place import NoPlace, Place, Surroundings


def place(around: Surroundings) -> Place:
    """The place of a pod; the coordinator is the pod with index 0, under the headless service. Raises NoPlace."""
    host, domain = around.host_and_domain
    node = around.number("JOB_COMPLETION_INDEX")
    stem, dash, index = host.rpartition("-")
    if not dash or index != str(node):
        raise NoPlace(f"JOB_COMPLETION_INDEX is {node}, but the host name is {host}")
    return around.place(node, f"{stem}-0.{domain}", "JOB_COMPLETION_INDEX")
