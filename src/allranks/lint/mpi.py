"""Mistakes around mpirun and the MPIJob."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allranks.lint.rule import ERROR, MPI, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field

HOSTFILE = "/etc/mpi/hostfile"
KEEPALIVES = ("ServerAliveInterval", "oob_tcp_keepalive")
PRTE_HOSTFILE = "PRTE_MCA_prte_default_hostfile"
AS_ROOT = "OMPI_ALLOW_RUN_AS_ROOT"
NOT_FOR_RANKS = re.compile(
    r"(OMPI_|PRTE_|PMIX_|I_MPI_|HYDRA_|NVIDIA_|K_MPI_|KUBERNETES_|POD_|DEBIAN_|TZ$|TERM$|HOME$|USER$|SHELL$)"
)


def launcher_missing(subject: Subject) -> Iterator[Found]:
    """No launcher, or more than one."""
    launcher = subject.spec.at("mpiReplicaSpecs", "Launcher")
    if not launcher:
        yield Found(subject.spec["mpiReplicaSpecs"], "there is no Launcher", "add mpiReplicaSpecs.Launcher")
    elif launcher["replicas"].number not in (None, 1):
        yield Found(launcher["replicas"], f"{launcher['replicas'].text} launchers", "write replicas: 1")


def _slots(subject: Subject) -> tuple[int, int]:
    worker = subject.role("Worker")
    hosts = (worker.count if worker else 0) + (1 if subject.launcher_is_worker or worker is None else 0)
    return hosts * subject.slots, hosts


def np_above_slots(subject: Subject) -> Iterator[Found]:
    """More ranks than there are slots."""
    slots, hosts = _slots(subject)
    ranks = subject.launch.ranks
    if ranks and ranks > slots and "oversubscribe" not in subject.launch.options:
        fix = f"write -np {slots}, or more slotsPerWorker or workers"
        yield Found(subject.command, f"-np {ranks}, but {hosts} hosts x {subject.slots} slots are {slots}", fix)


def np_below_slots(subject: Subject) -> Iterator[Found]:
    """Fewer ranks than slots."""
    slots, hosts = _slots(subject)
    ranks, per_node = subject.launch.ranks, subject.launch.per_node
    if ranks and ranks < slots and not (per_node and per_node * hosts == ranks):
        fix = f"write -np {slots}, or fewer slotsPerWorker or workers"
        yield Found(subject.command, f"-np {ranks}, but {hosts} hosts x {subject.slots} slots are {slots}", fix)


def slots_against_gpus(subject: Subject) -> Iterator[Found]:
    """Slots that are not the GPUs of a worker, where mpirun starts every rank."""
    worker = subject.role("Worker")
    if worker and worker.gpus and worker.gpus != subject.slots and subject.launch.per_node is None:
        at = subject.spec["slotsPerWorker"]
        yield Found(at, f"{subject.slots} slots, but a worker has {worker.gpus} GPUs", f"slotsPerWorker: {worker.gpus}")


def name_too_long(subject: Subject) -> Iterator[Found]:
    """A name that leaves no room for what the operator adds."""
    worker = subject.role("Worker")
    last = f"{subject.name}-worker-{max((worker.count if worker else 1) - 1, 0)}"
    if len(last) > 63:
        at = subject.root.at("metadata", "name")
        yield Found(
            at, f"the last worker's name has {len(last)} letters", f"take {len(last) - 63} letters off the name"
        )


def restart_policy_unknown(subject: Subject) -> Iterator[Found]:
    """A restart policy that the operator refuses, in an event only."""
    for role in subject.roles:
        policy = role.spec["restartPolicy"]
        if policy and policy.text not in ("Never", "OnFailure"):
            yield Found(policy, f"restartPolicy: {policy.text}", "write Never or OnFailure")


def worker_never(subject: Subject) -> Iterator[Found]:
    """A worker that fails stays failed."""
    worker = subject.role("Worker")
    if worker and worker.spec["restartPolicy"].text == "Never":
        yield Found(worker.spec["restartPolicy"], "Worker: restartPolicy: Never", "write restartPolicy: OnFailure")


def clean_pod_policy(subject: Subject) -> Iterator[Found]:
    """Workers that outlive the job and hold their GPUs."""
    policy = subject.spec.at("runPolicy", "cleanPodPolicy") or subject.spec["cleanPodPolicy"]
    if policy.text in ("", "None"):
        said = "cleanPodPolicy: None" if policy else "no cleanPodPolicy, which means None"
        yield Found(policy, said, "write runPolicy: {cleanPodPolicy: Running}")


def launcher_races(subject: Subject) -> Iterator[Found]:
    """A launcher that may run before its workers have names."""
    policy, launcher = subject.spec["launcherCreationPolicy"], subject.role("Launcher")
    if launcher and launcher.is_agent:
        return
    if subject.role("Worker") and policy.text != "WaitForWorkersReady" and not _is_v1(subject):
        yield Found(
            policy, "the launcher starts beside its workers", "write launcherCreationPolicy: WaitForWorkersReady"
        )


def _suspended(subject: Subject) -> Field:
    queue = subject.root.at("metadata", "labels", "kueue.x-k8s.io/queue-name")
    suspend = subject.spec.at("runPolicy", "suspend")
    return queue if queue else suspend if suspend.is_true else Field(None)


def wait_lost(subject: Subject) -> Iterator[Found]:
    """WaitForWorkersReady on a job that is created suspended."""
    suspended = _suspended(subject)
    waits = subject.spec["launcherCreationPolicy"].text == "WaitForWorkersReady"
    if suspended and waits and not re.search(r"getent|nslookup|ConnectTimeout|until ", " ".join(_script(subject))):
        fix = "let the launcher wait itself: until getent hosts NAME; do sleep 1; done, with a limit"
        yield Found(suspended, "created suspended, so WaitForWorkersReady does nothing", fix)


def _script(subject: Subject) -> tuple[str, ...]:
    launcher = subject.role("Launcher")
    return launcher.argv if launcher else ()


def min_available(subject: Subject) -> Iterator[Found]:
    """A pod group that waits for a launcher which waits for the group."""
    policy, worker = subject.spec.at("runPolicy", "schedulingPolicy"), subject.role("Worker")
    if not policy or worker is None or subject.spec["launcherCreationPolicy"].text != "WaitForWorkersReady":
        return
    least = policy["minAvailable"]
    if least.number is None or least.number > worker.count:
        said = f"minAvailable: {least.number}" if least else f"no minAvailable, which means {worker.count + 1}"
        yield Found(least, f"{said}, with WaitForWorkersReady", f"write minAvailable: {worker.count}")


def _is_v1(subject: Subject) -> bool:
    """Training Operator's own MPIJob, whose mpirun goes by kubectl exec instead of ssh."""
    return subject.root["apiVersion"].text == "kubeflow.org/v1"


def _is_openmpi(subject: Subject) -> bool:
    return (
        not _is_v1(subject)
        and subject.launch.launcher == "mpirun"
        and subject.spec["mpiImplementation"].text in ("", "OpenMPI")
    )


def hostfile_ignored(subject: Subject) -> Iterator[Found]:
    """Mpirun without an explicit hostfile: Open MPI from 5.0.6 on does not read the operator's variables."""
    launcher = subject.role("Launcher")
    if launcher is None or not _is_openmpi(subject) or not subject.role("Worker"):
        return
    has_hosts = subject.launch.hostfile or {"H", "host"} & set(subject.launch.options)
    if not has_hosts and PRTE_HOSTFILE not in launcher.env and PRTE_HOSTFILE not in " ".join(launcher.argv):
        yield Found(subject.command, "mpirun without --hostfile", f"add --hostfile {HOSTFILE} to mpirun")


def no_keepalive(subject: Subject) -> Iterator[Found]:
    """Ssh sessions that do not notice a lost node."""
    launcher = subject.role("Launcher")
    if launcher is None or not _is_openmpi(subject) or not subject.role("Worker"):
        return
    if not any(word in " ".join(launcher.argv) for word in KEEPALIVES):
        fix = 'add --mca plm_rsh_args "-o ConnectionAttempts=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=3"'
        yield Found(subject.command, "mpirun without a keepalive", fix)


def env_stays_behind(subject: Subject) -> Iterator[Found]:
    """Variables of a container that no rank sees."""
    if not _is_openmpi(subject):
        return
    passed = {*subject.launch.passed, *subject.launch.env}
    for role in subject.roles:
        if role.name == "Worker" and any(entry in " ".join(role.argv) for entry in ("/etc/environment", "SetEnv")):
            continue
        for name, entry in role.env.items():
            if name not in passed and not NOT_FOR_RANKS.match(name):
                fix = f"add -x {name} to mpirun" + (
                    "" if role.name == "Launcher" else f", and set {name} in the Launcher"
                )
                yield Found(entry, f"{name} is set in the {role.name} and not passed on", fix)


def mpirun_as_root(subject: Subject) -> Iterator[Found]:
    """Open MPI refuses to run as root."""
    launcher = subject.role("Launcher")
    if launcher is None or not _is_openmpi(subject) or "allow_run_as_root" in subject.launch.options:
        return
    users = (launcher.container.at("securityContext", "runAsUser"), launcher.pod.at("securityContext", "runAsUser"))
    if (
        AS_ROOT not in launcher.env
        and not any(user.number for user in users)
        and AS_ROOT not in " ".join(launcher.argv)
    ):
        fix = "add --allow-run-as-root to mpirun, or set securityContext.runAsUser"
        yield Found(subject.command, "mpirun without --allow-run-as-root, and no user is set", fix)


def launcher_holds_gpus(subject: Subject) -> Iterator[Found]:
    """GPUs of a launcher that runs no rank."""
    launcher = subject.role("Launcher")
    if launcher and launcher.gpus and subject.role("Worker") and not subject.launcher_is_worker:
        at = launcher.amount(launcher.gpu_resource)[1]
        fix = "take them off the Launcher, or set runLauncherAsWorker: true and one Worker fewer"
        yield Found(at, f"the Launcher holds {launcher.gpus} GPUs and runs no rank", fix)


def launcher_lacks_gpus(subject: Subject) -> Iterator[Found]:
    """A launcher that runs ranks without GPUs."""
    launcher, worker = subject.role("Launcher"), subject.role("Worker")
    if launcher and worker and subject.launcher_is_worker and worker.gpus > launcher.gpus:
        at = launcher.container["resources"]
        fix = f"give the Launcher {worker.gpus} too, or remove runLauncherAsWorker"
        yield Found(at, f"the Launcher runs ranks with {launcher.gpus} GPUs, a Worker has {worker.gpus}", fix)


RULES = (
    Rule("launcher-missing", ERROR, MPI, launcher_missing,
        "The operator refuses such a job, in an event only: its state stays empty."),
    Rule("np-above-slots", ERROR, MPI, np_above_slots,
        "mpirun ends with 'not enough slots available'."),
    Rule("np-below-slots", WARNING, MPI, np_below_slots,
        "The slots that are left, and their GPUs, do nothing."),
    Rule("slots-against-gpus", WARNING, MPI, slots_against_gpus,
        "Ranks share a GPU, or GPUs do nothing."),
    Rule("name-too-long", ERROR, MPI, name_too_long,
        "<name>-worker-<n> must be a DNS label of 63 letters; the operator refuses it, in an event only."),
    Rule("restart-policy-unknown", ERROR, MPI, restart_policy_unknown,
        "The operator refuses it, in an event only."),
    Rule("worker-never", WARNING, MPI, worker_never,
        "A failed worker is never replaced, so every retry of the launcher fails too."),
    Rule("clean-pod-policy", WARNING, MPI, clean_pod_policy,
        "The workers' sshd runs on after the job's end, and holds GPUs until the job is deleted."),
    Rule("launcher-races-workers", WARNING, MPI, launcher_races,
        "ssh cannot resolve a worker that has no name yet; the first launcher fails."),
    Rule("wait-lost-when-suspended", WARNING, MPI, wait_lost,
        "On a job created suspended (Kueue) the launcher does not wait, and may fail once."),
    Rule("min-available-deadlock", ERROR, MPI, min_available,
        "The group waits for the launcher, which waits for the group: nothing starts."),
    Rule("hostfile-ignored", WARNING, MPI, hostfile_ignored,
        "Open MPI from 5.0.6 on ignores the operator's OMPI_MCA_orte_* variables: all ranks run on the launcher,"
        " or none."),
    Rule("no-keepalive", WARNING, MPI, no_keepalive,
        "When a node loses power, mpirun notices nothing for minutes, and all GPUs wait."),
    Rule("env-stays-behind", WARNING, MPI, env_stays_behind,
        "sshd gives ranks a clean environment: a variable of the container does not reach them."),
    Rule("mpirun-as-root", WARNING, MPI, mpirun_as_root,
        "Open MPI refuses to run as root, which most images do."),
    Rule("launcher-holds-gpus", WARNING, MPI, launcher_holds_gpus,
        "They are paid for and do nothing: the operator hides GPUs from such a launcher."),
    Rule("launcher-lacks-gpus", ERROR, MPI, launcher_lacks_gpus,
        "The ranks on the launcher find no GPU."),
)  # fmt: skip
