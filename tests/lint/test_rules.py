"""Each rule finds its mistake, named as a sentence, and finds nothing in the manifest without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.lint.files import RULES, lint
from tests.lint import good

HEADER = "apiVersion: x/v1\nkind: ConfigMap\n---\n"
TORCHRUN = "torchrun --nnodes=$PET_NNODES --node-rank=$RANK train.py"
LIMITS = "limits: {nvidia.com/gpu: 2, rdma/rdma: 1, cpu: 8, memory: 32Gi}"
HOSTFILE_OPTION = ", --hostfile, /etc/mpi/hostfile"
LAUNCHER_IMAGE = "image: ghcr.io/acme/train:1\n            command"
TRAINER = "  trainer:\n"

# The rule, the case as a sentence, the manifest, what is changed in it and into what, and what is said.
CASES = [
    ("worker-outside", "a Worker beside mpiReplicaSpecs is found", "MPIJOB",
     "    Worker:\n", "  Worker:\n", "Worker stands under spec, outside mpiReplicaSpecs"),
    ("unknown-field", "a misspelt field is named with the right one", "MPIJOB",
     "slotsPerWorker: 2", "slotPerWorker: 2", "MPIJob has no field spec.slotPerWorker"),
    ("wrong-type", "a word where a mapping must stand is found", "JOBSET", "{maxRestarts: 3}", "RestartJobSet",
     "spec.failurePolicy is RestartJobSet"),
    ("wrong-type", "a mapping where a list must stand is found", "MPI_TRAINJOB",
     "containers: [{name: node, image: mpi:1}]",
     "containers: {name: node, image: mpi:1}", "containers is a mapping"),
    ("launcher-missing", "an MPIJob without a launcher is found", "MPIJOB", "    Launcher:\n", "    Laucher:\n",
     "there is no Launcher"),
    ("launcher-missing", "two launchers are found", "MPIJOB", "replicas: 1", "replicas: 2", "2 launchers"),
    ("np-above-slots", "more ranks than slots are found", "MPIJOB", '-np, "4"', '-np, "8"',
     "-np 8, but 2 hosts x 2 slots are 4"),
    ("np-below-slots", "fewer ranks than slots are found", "MPIJOB", '-np, "4"', '-np, "2"',
     "-np 2, but 2 hosts x 2 slots are 4"),
    ("slots-against-gpus", "slots that are not the GPUs are found", "MPIJOB", "slotsPerWorker: 2", "slotsPerWorker: 1",
     "1 slots, but a worker has 2 GPUs"),
    ("name-too-long", "a name without room for -worker-1 is found", "MPIJOB", "name: digits", f"name: {'d' * 60}",
     "the last worker's name has 69 letters"),
    ("restart-policy-unknown", "restartPolicy: Always is found", "MPIJOB", "restartPolicy: Never",
     "restartPolicy: Always", "restartPolicy: Always"),
    ("worker-never", "a worker that is never restarted is found", "MPIJOB", "restartPolicy: OnFailure",
     "restartPolicy: Never", "Worker: restartPolicy: Never"),
    ("clean-pod-policy", "workers that stay are found", "MPIJOB", "cleanPodPolicy: Running", "cleanPodPolicy: None",
     "cleanPodPolicy: None"),
    ("clean-pod-policy", "the default is found too", "MPIJOB", "    cleanPodPolicy: Running\n", "",
     "no cleanPodPolicy, which means None"),
    ("launcher-races-workers", "a launcher that does not wait is found", "MPIJOB",
     "  launcherCreationPolicy: WaitForWorkersReady\n", "", "the launcher starts beside its workers"),
    ("wait-lost-when-suspended", "a Kueue label takes the waiting away", "MPIJOB", "  namespace: team-a\n",
     "  labels: {kueue.x-k8s.io/queue-name: q}\n", "created suspended, so WaitForWorkersReady does nothing"),
    ("min-available-deadlock", "a group that counts the launcher is found", "MPIJOB", "    backoffLimit: 2\n",
     "    schedulingPolicy: {queue: q}\n", "no minAvailable, which means 3, with WaitForWorkersReady"),
    ("hostfile-ignored", "mpirun without a hostfile is found", "MPIJOB", HOSTFILE_OPTION, "",
     "mpirun without --hostfile"),
    ("no-keepalive", "mpirun without a keepalive is found", "MPIJOB", "-o ServerAliveInterval=2", "-o LogLevel=ERROR",
     "mpirun without a keepalive"),
    ("env-stays-behind", "a variable that is not passed on is found", "MPIJOB", "-x, NCCL_DEBUG=INFO, ", "",
     "NCCL_DEBUG is set in the Worker and not passed on"),
    ("mpirun-as-root", "mpirun as root is found", "MPIJOB", "--allow-run-as-root, ", "",
     "mpirun without --allow-run-as-root, and no user is set"),
    ("launcher-holds-gpus", "GPUs on an idle launcher are found", "MPIJOB", LAUNCHER_IMAGE,
     "resources: {limits: {nvidia.com/gpu: 2}}\n            command", "the Launcher holds 2 GPUs and runs no rank"),
    ("launcher-lacks-gpus", "a launcher with ranks and no GPUs is found", "MPIJOB", "  slotsPerWorker: 2\n",
     "  slotsPerWorker: 2\n  runLauncherAsWorker: true\n", "the Launcher runs ranks with 0 GPUs, a Worker has 2"),
    ("gpu-request-differs", "a GPU request without its limit is found", "PYTORCHJOB", LIMITS,
     "requests: {nvidia.com/gpu: 2}", "Master: nvidia.com/gpu: request 2, limit none"),
    ("gpu-fraction", "half a GPU is found", "JOBSET", "nvidia.com/gpu: 2", 'nvidia.com/gpu: "0.5"',
     "node: nvidia.com/gpu: 0.5"),
    ("shm-small", "GPUs without /dev/shm are found", "JOBSET", "mountPath: /dev/shm", "mountPath: /shm",
     "node: nothing is mounted at /dev/shm"),
    ("shm-small", "a /dev/shm on disk is found", "JOBSET", "medium: Memory, ", "", "node: /dev/shm is on disk"),
    ("shm-small", "a small /dev/shm is found", "JOBSET", "sizeLimit: 16Gi", "sizeLimit: 64Mi",
     "node: /dev/shm has 64Mi"),
    ("value-not-text", "a bare number in env is found", "TRAINJOB", 'value: "3"', "value: 3",
     "spec.trainer.env[0].value is 3, not text"),
    ("value-not-text", "a bare number among arguments is found", "MPIJOB", '-np, "4"', "-np, 4",
     "command[3] is 4, not text"),
    ("container-name", "a container by another name is found", "PYTORCHJOB", "name: pytorch", "name: train",
     "Master: its containers are named train"),
    ("host-network-names", "the host's network without DNS is found", "JOBSET", "            tolerations:",
     "            hostNetwork: true\n            tolerations:", "node: hostNetwork without its dnsPolicy"),
    ("variable-invented", "OMPI_COMM_WORLD_MASTER_ADDR is found", "MPIJOB", "python, train.py",
     "bash, -c, MASTER_ADDR=$OMPI_COMM_WORLD_MASTER_ADDR python train.py", "OMPI_COMM_WORLD_MASTER_ADDR is used"),
    ("variable-unset", "MASTER_ADDR under an MPIJob is found", "MPIJOB", "python, train.py",
     "bash, -c, python train.py --address $MASTER_ADDR", "$MASTER_ADDR is used, and nobody sets it there"),
    ("variable-unset", "RANK in a TrainJob is found", "TRAINJOB", "[torchrun, train.py]",
     "[bash, -c, torchrun --node-rank=$RANK train.py]", "$RANK is used, and nobody sets it there"),
    ("universe-size", "OMPI_UNIVERSE_SIZE is found", "MPIJOB", "python, train.py",
     "bash, -c, WORLD_SIZE=$OMPI_UNIVERSE_SIZE python train.py", "OMPI_UNIVERSE_SIZE is used"),
    ("pods-disagree", "a Worker that is told of other nodes is found, with the Master's line", "PYTORCHJOB",
     "template: *pod", "template: {spec: {containers: [{name: pytorch, command: [torchrun, --nnodes=2, t.py]}]}}",
     "Worker: nnodes is 2, in the Master it is $PET_NNODES (line 18)"),
    ("pods-disagree", "variables that differ are found too", "PYTORCHJOB",
     "template: *pod", "template: {spec: {containers: [{name: pytorch, command: [torchrun, t.py], "
     "env: [{name: PET_NNODES, value: '3'}]}]}}", "Worker: nnodes is 3, in the Master it is $PET_NNODES (line 18)"),
    ("launchers-disagree", "a Worker without torchrun is found", "PYTORCHJOB",
     "template: *pod", "template: {spec: {containers: [{name: pytorch, command: [python, t.py]}]}}",
     "the Worker starts one process a pod, the Master torchrun"),
    ("nodes-against-replicas", "a number of nodes that is not the pods' is found", "PYTORCHJOB", "$PET_NNODES", "8",
     "Master: nnodes is 8, but 1 Master + 3 Worker are 4 pods"),
    ("nodes-against-replicas", "so is a range that leaves the pods out", "PYTORCHJOB", "$PET_NNODES", "1:3",
     "Master: nnodes is 1:3, but 1 Master + 3 Worker are 4 pods"),
    ("world-size-for-nodes", "WORLD_SIZE taken for the nodes is found", "PYTORCHJOB", "$PET_NNODES", "$WORLD_SIZE",
     "--nnodes=$WORLD_SIZE, which counts processes here: nprocPerNode is 2"),
    ("rank-counts-pods", "one process for two GPUs is found", "PYTORCHJOB", TORCHRUN, "python train.py",
     "one process a pod, where 2 ranks are meant"),
    ("rank-set-by-hand", "a RANK of one's own is found", "PYTORCHJOB", "{name: NCCL_DEBUG, value: INFO}",
     '{name: RANK, value: "0"}', "RANK is set by hand"),
    ("variable-reserved", "a reserved variable is found", "TRAINJOB", "name: EPOCHS", "name: PET_NNODES",
     "PET_NNODES is reserved"),
    ("no-failure-policy", "a JobSet without restarts is found", "JOBSET", "  failurePolicy: {maxRestarts: 3}\n", "",
     "no failurePolicy"),
    ("backoff-before-restart", "pods tried again alone are found", "JOBSET", "backoffLimit: 0", "backoffLimit: 6",
     "node: backoffLimit: 6, under a failurePolicy"),
    ("restart-in-place", "containers that restart alone are found", "TRAINJOB", "restartPolicy: Never",
     "restartPolicy: OnFailure", "node: restartPolicy: OnFailure, under a failurePolicy"),
    ("one-pod-restarts", "a PyTorchJob's OnFailure is found", "PYTORCHJOB", "restartPolicy: Never",
     "restartPolicy: OnFailure", "Master: restartPolicy: OnFailure"),
    ("five-minute-tolerations", "Kubernetes' five minutes are found", "JOBSET", "tolerationSeconds: 15",
     "tolerationSeconds: 300", "node: no short toleration of not-ready"),
    ("job-not-indexed", "pods without a number are found", "JOB", "  completionMode: Indexed\n", "",
     "2 pods, not Indexed"),
    ("rdma-switched-off", "NCCL_NET=Socket is found", "TRAINJOB", "{name: EPOCHS, value: \"3\"}",
     "{name: NCCL_NET, value: Socket}", "NCCL_NET=Socket"),
    ("rdma-asked-for-and-off", "NCCL_IB_DISABLE=1 beside a device is found", "MPIJOB", "NCCL_DEBUG=INFO",
     "NCCL_DEBUG=INFO, -x, NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE=1 beside an RDMA device"),
    ("interface-lo", "the loopback interface is found", "PYTORCHJOB", "{name: NCCL_DEBUG, value: INFO}",
     "{name: NCCL_SOCKET_IFNAME, value: lo}", "NCCL_SOCKET_IFNAME=lo"),
    ("gid-index-fixed", "one GID index for all is found", "PYTORCHJOB", "{name: NCCL_DEBUG, value: INFO}",
     '{name: NCCL_IB_GID_INDEX, value: "3"}', "NCCL_IB_GID_INDEX=3 for every node"),
    ("network-without-device", "a network without its device is found", "MPIJOB", "rdma/rdma: 1, ", "",
     "Worker: the network kube-system/roce without an RDMA device"),
    ("memory-not-locked", "RDMA without IPC_LOCK is found", "JOBSET", "add: [IPC_LOCK]", "add: [SYS_PTRACE]",
     "node: an RDMA device without IPC_LOCK"),
    ("overrides-version", "overrides of an older Trainer are found", "TRAINJOB", TRAINER,
     "  podSpecOverrides: [{targetJobs: [{name: node}]}]\n  trainer:\n", "podSpecOverrides is of Trainer 2.0 alone"),
    ("patched-env", "env in a patch is found", "TRAINJOB", TRAINER,
     "  runtimePatches: [{manager: a/b, trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: n, template: "
     "{spec: {template: {spec: {containers: [{name: node, env: [{name: A}]}]}}}}}]}}}}]\n  trainer:\n",
     "a patch sets env of node"),
    ("mpi-hostfile", "DeepSpeed's own path in a TrainJob is found", "MPI_TRAINJOB", "/etc/mpi/hostfile",
     "/job/hostfile", "the hostfile /job/hostfile"),
    ("discover-hosts", "a script that Trainer does not make is found", "MPI_TRAINJOB", "[mpirun",
     "[horovodrun, --host-discovery-script, /etc/mpi/discover_hosts.sh, mpirun", "discover_hosts.sh is used"),
    ("proc-per-node-text", "numProcPerNode: auto is found", "TRAINJOB", "numProcPerNode: 2", "numProcPerNode: auto",
     "numProcPerNode: auto is text"),
    ("launchers-many", "several launchers are found", "MPI_TRAINJOB", "numNodes: 1", "numNodes: 4",
     "numNodes: 4 in an mpi runtime"),
    ("mpi-implementation", "Intel MPI in a runtime is found", "MPI_TRAINJOB", "mpiImplementation: OpenMPI",
     "mpiImplementation: Intel", "mpiImplementation: Intel"),
    ("one-node-is-two", "a single node that becomes two is found", "MPI_TRAINJOB", "numNodes: 2", "numNodes: 1",
     "numNodes: 1 with runLauncherAsNode"),
    ("launcher-alone", "an image that no node gets is found", "MPI_TRAINJOB", TRAINER, "  trainer:\n    image: a:1\n",
     "trainer.image reaches the launcher alone"),
    ("pod-group-deadlock", "a group with dependents is found", "MPI_TRAINJOB", "  mlPolicy:\n",
     "  podGroupPolicy: {coscheduling: {}}\n  mlPolicy:\n", "podGroupPolicy, and launcher depends on others"),
    ("hostfile-not-deepspeeds", "host:N is found", "HOSTFILE", "node-0 slots=8", "node-0:8",
     "DeepSpeed does not read 'node-0:8'"),
    ("host-twice", "a host on two lines is found", "HOSTFILE", "node-1", "node-0", "node-0 stands in line 1 too"),
    ("slots-differ", "unequal slots are found", "HOSTFILE", "node-1 slots=8", "node-1 slots=4",
     "node-1 has 4 slots, node-0 has 8"),
    ("deepspeed-alone", "deepspeed without a hostfile is found", "MPI_TRAINJOB",
     '[mpirun, -np, "4", --hostfile, /etc/mpi/hostfile, python, train.py]', "[deepspeed, train.py]",
     "deepspeed without --hostfile, and nothing is mounted there"),
    ("deepspeed-with-colons", "deepspeed with Intel's hostfile is found", "DEEPSPEED_MPIJOB",
     'slotsPerWorker: 2\n', "slotsPerWorker: 2\n  mpiImplementation: Intel\n",
     "deepspeed reads the hostfile of Intel, which has host:N"),
    ("spot-without-restarts", "spot nodes without restarts are found", "SPEC", "restarts: 3", "restarts: 0",
     "restarts: 0 on nodes that may be taken away"),
    ("service-without-restarts", "a service that one fault ends is found", "SERVICE", "restarts: 9", "restarts: 0",
     "restarts: 0 in a service"),
    ("service-with-deadline", "a service that ends by the clock is found", "SERVICE", "restarts: 9",
     "restarts: 9, deadline: 5h", "deadline: 5h in a service"),
    ("open-to-all", "a service for all without a key is found", "SERVICE", "api_key: {secret: chat/key}\n", "",
     "other machines reach it, and api_key is not set"),
    ("gpus-without-shm", "a spec's GPUs without shm are found", "SPEC", ", shm: 16Gi", "", "2 GPUs and no shm"),
]  # fmt: skip


@pytest.mark.parametrize("name", good.ALL)
def test_a_manifest_without_a_mistake_is_clean(name: str) -> None:
    linted = lint(good.ALL[name], name)
    assert (linted.findings, linted.unread, linted.nothing) == ([], [], "")


@pytest.mark.parametrize(("rule", "sentence", "name", "old", "new", "said"), CASES, ids=[case[1] for case in CASES])
def test_a_rule_finds_its_mistake(rule: str, sentence: str, name: str, old: str, new: str, said: str) -> None:
    text = good.ALL[name]
    assert old in text, f"{sentence}: nothing to change"
    text = text.replace(old, new)
    above = "" if name in ("HOSTFILE", "SPEC", "SERVICE") else HEADER
    found = [one for one in lint(above + text, "file.yaml").findings if one.rule == rule]
    assert found, sentence
    assert said in " ".join(one.what for one in found)
    assert all(one.file == "file.yaml" and 0 < one.line <= text.count("\n") + 4 and one.fix for one in found)


def test_a_service_of_kubernetes_own_is_none_of_ours() -> None:
    linted = lint("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", "service.yaml")
    assert (linted.findings, linted.unread, linted.gangs) == ([], [], 0)


def test_every_rule_has_a_case_a_name_of_its_own_and_a_reason() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {case[0] for case in CASES} == set(names)
    assert all(rule.why.endswith(".") and rule.check.__doc__ for rule in RULES)


def test_the_place_is_the_line_of_the_mistake() -> None:
    text = HEADER + good.MPIJOB.replace("slotsPerWorker: 2", "slotPerWorker: 2")
    found = next(one for one in lint(text, "m.yaml").findings if one.rule == "unknown-field")
    assert text.splitlines()[found.line - 1] == "  slotPerWorker: 2"
    assert (found.column, found.fix) == (3, "did you mean slotsPerWorker?")


@pytest.mark.parametrize(
    ("version", "field", "right"),
    [((2, 0), "runtimePatches", "podSpecOverrides"), ((2, 1), "podSpecOverrides", "podTemplateOverrides"),
     ((2, 3), "podTemplateOverrides", "runtimePatches")],
)  # fmt: skip
def test_an_override_is_told_by_the_name_that_the_installed_trainer_has(
    version: tuple[int, int], field: str, right: str
) -> None:
    text = good.TRAINJOB.replace(TRAINER, f"  {field}: [{{a: b}}]\n{TRAINER}")
    found = [one for one in lint(text, "t.yaml", version).findings if one.rule == "overrides-version"]
    assert [one.fix for one in found] == [f"write {right}"]


def test_the_page_about_lint_has_every_rule_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs/lint.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][1:]
    told = [(row[0].removeprefix("| "), row[1], row[3].removesuffix(" |")) for row in rows]
    assert told == [(rule.name, rule.severity, rule.why) for rule in RULES]


def test_training_operators_own_mpijob_is_not_held_to_what_ssh_needs() -> None:
    text = good.MPIJOB.replace("v2beta1", "v1").replace("  launcherCreationPolicy: WaitForWorkersReady\n", "")
    text = text.replace(HOSTFILE_OPTION, "").replace("-x, NCCL_DEBUG=INFO, ", "")
    assert lint(text, "v1.yaml").findings == []
