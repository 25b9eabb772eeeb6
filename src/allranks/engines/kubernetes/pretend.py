"""A local node dressed as a pod: what every Kubernetes gives, whichever operator made the pod.

Left out are the ``KUBERNETES_*`` variables: there is no API server here, and clients would look for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allranks.node.pod import Pod

if TYPE_CHECKING:
    from allranks.spec.job import Job

NATIVE_AND_TORCH = ("native", "torchrun", "deepspeed", "once")
"""The launchers of an engine that has no MPI of its own."""

_HOSTS = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def pod(
    job: Job, address: str, hostname: str, service: str, env: Mapping[str, str], files: Mapping[str, str] | None = None
) -> Pod:
    """A pod at ``address``. ``service`` is the headless service it is found under, none when it has one of its own.

    kubelet writes the full name into /etc/hosts only for a pod with a subdomain.
    """
    zone = f"{job.schedule.namespace or 'default'}.svc"
    name = f"{hostname}.{service}" if service else hostname
    full = f"{name}.{zone}.cluster.local"
    known = f"{address}\t{full}\t{hostname}\n" if service else f"{address}\t{hostname}\n"
    return Pod(
        hostname=hostname,
        names=(name, f"{name}.{zone}", full),
        env={"HOSTNAME": hostname, **env},
        files={"/etc/hosts": _HOSTS + known, **(files or {})},
    )


def open_mpi(slots: int) -> dict[str, str]:
    """What both operators that know MPI tell a launcher's mpirun."""
    return {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(slots),
    }
