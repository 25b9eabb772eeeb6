"""What can go wrong with the cluster itself."""

from __future__ import annotations


class ClusterError(Exception):
    """What happened, what was found, and what to do next; ``python -m tests.cluster`` prints it and exits with 69."""


class Unavailable(ClusterError):
    """A cluster cannot be had on this machine, or not now."""


class NotRunning(ClusterError):
    """There is no cluster, or it is only half there."""


class CannotInject(ClusterError):
    """The kernel has not what the fault needs."""
