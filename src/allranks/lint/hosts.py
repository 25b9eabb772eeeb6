"""Hostfiles, and the commands that read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allranks.lint.rule import ERROR, EVERY, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.hostfile import DEEPSPEED, Host

DEEPSPEEDS_OWN = "/job/hostfile"
HOSTFILE = ("hostfile",)


@dataclass(frozen=True)
class HostSubject(Subject):
    """A hostfile, as what rules are given."""

    hosts: tuple[Host, ...] = ()


def _hosts(subject: Subject) -> tuple[Host, ...]:
    return subject.hosts if isinstance(subject, HostSubject) else ()


def _at(host: Host) -> Field:
    return Field(None, host.text, host.position)


def not_deepspeeds(subject: Subject) -> Iterator[Found]:
    """Lines that DeepSpeed cannot read."""
    for host in _hosts(subject):
        if not DEEPSPEED.match(host.text):
            fix = f"write '{host.name} slots={host.slots or 1}'"
            yield Found(_at(host), f"DeepSpeed does not read '{host.text}'", fix)


def host_twice(subject: Subject) -> Iterator[Found]:
    """A host on two lines."""
    seen: dict[str, Host] = {}
    for host in _hosts(subject):
        if host.name in seen:
            fix = f"write it once: '{host.name} slots={(host.slots or 1) + (seen[host.name].slots or 1)}'"
            yield Found(_at(host), f"{host.name} stands in line {seen[host.name].position.line} too", fix)
        seen.setdefault(host.name, host)


def slots_differ(subject: Subject) -> Iterator[Found]:
    """Hosts with unlike numbers of ranks."""
    hosts = _hosts(subject)
    for host in hosts[1:]:
        if host.slots != hosts[0].slots:
            yield Found(
                _at(host), f"{host.name} has {host.slots} slots, {hosts[0].name} has {hosts[0].slots}", "write the same"
            )
            return


def _is_deepspeed(subject: Subject) -> bool:
    options = subject.launch.options
    return subject.launch.launcher == "deepspeed" and not {"no_ssh", "num_nodes"} & set(options)


def deepspeed_alone(subject: Subject) -> Iterator[Found]:
    """``deepspeed`` without a hostfile, which is no error to it."""
    if not _is_deepspeed(subject) or subject.launch.hostfile not in ("", DEEPSPEEDS_OWN):
        return
    mounts = [one["mountPath"].text for container in subject.containers for one in container["volumeMounts"].items]
    if not any(DEEPSPEEDS_OWN.startswith(mount.rstrip("/")) for mount in mounts if mount):
        what = f"--hostfile {DEEPSPEEDS_OWN}" if subject.launch.hostfile else "deepspeed without --hostfile"
        yield Found(
            subject.command, f"{what}, and nothing is mounted there", "write --hostfile /etc/mpi/hostfile, or --no_ssh"
        )


def deepspeed_with_colons(subject: Subject) -> Iterator[Found]:
    """``deepspeed`` with the hostfile that the operator writes for Intel MPI or MPICH."""
    implementation = subject.spec["mpiImplementation"]
    if (
        _is_deepspeed(subject)
        and implementation.text in ("Intel", "MPICH")
        and subject.launch.hostfile.startswith("/etc/mpi")
    ):
        fix = "write mpiImplementation: OpenMPI"
        yield Found(implementation, f"deepspeed reads the hostfile of {implementation.text}, which has host:N", fix)


RULES = (
    Rule("hostfile-not-deepspeeds", ERROR, HOSTFILE, not_deepspeeds,
        "DeepSpeed takes 'host slots=N' alone and ends with an error on anything else."),
    Rule("host-twice", ERROR, HOSTFILE, host_twice,
        "DeepSpeed refuses a host that comes twice; Open MPI 4 counts its slots wrong."),
    Rule("slots-differ", WARNING, HOSTFILE, slots_differ,
        "Ranks of such a gang are unlike: the slowest node sets the pace, and most scripts assume equal nodes."),
    Rule("deepspeed-alone", ERROR, EVERY, deepspeed_alone,
        "Without its hostfile DeepSpeed warns once and trains on one node alone."),
    Rule("deepspeed-with-colons", ERROR, ("MPIJob",), deepspeed_with_colons,
        "DeepSpeed cannot read such lines and ends with an error."),
)  # fmt: skip
