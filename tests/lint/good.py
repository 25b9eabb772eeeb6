"""Manifests without a mistake; a test changes one thing in one of them."""

from __future__ import annotations

TOLERATIONS = """
            tolerations: &lost
            - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 15}
            - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 15}"""
POD = """
            volumes:
            - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
            - {name: data, persistentVolumeClaim: {claimName: scratch}}"""
CONTAINER = """
              image: ghcr.io/acme/train:1
              env:
              - {name: NCCL_DEBUG, value: INFO}
              resources:
                limits: {nvidia.com/gpu: 2, rdma/rdma: 1, cpu: 8, memory: 32Gi}
              securityContext: {capabilities: {add: [IPC_LOCK]}}
              volumeMounts:
              - {name: shm, mountPath: /dev/shm}
              - {name: data, mountPath: /data, readOnly: true}"""

MPIJOB = f"""\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: digits
  namespace: team-a
spec:
  slotsPerWorker: 2
  launcherCreationPolicy: WaitForWorkersReady
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: 2
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
          - name: mpi
            image: ghcr.io/acme/train:1
            command: [mpirun, --allow-run-as-root, -np, "4", --hostfile, /etc/mpi/hostfile]
            args: [-x, NCCL_DEBUG=INFO, -x, PATH, --mca, plm_rsh_args, -o ServerAliveInterval=2, python, train.py]
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        metadata:
          annotations: {{k8s.v1.cni.cncf.io/networks: kube-system/roce}}
        spec:
            containers:
            - name: mpi{CONTAINER}{POD}{TOLERATIONS}
"""

DEEPSPEED_MPIJOB = MPIJOB.replace('mpirun, --allow-run-as-root, -np, "4"', "deepspeed").replace(
    "-x, NCCL_DEBUG=INFO, -x, PATH, --mca, plm_rsh_args, -o ServerAliveInterval=2, python, ", ""
)

PYTORCHJOB = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: digits}}
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template: &pod
        spec:
            containers:
            - name: pytorch
              command: [bash, -c]
              args: ["torchrun --nnodes=$PET_NNODES --node-rank=$RANK train.py"]{CONTAINER}{POD}{TOLERATIONS}
    Worker:
      replicas: 3
      restartPolicy: Never
      template: *pod
"""

JOBSET = f"""\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {{name: digits}}
spec:
  failurePolicy: {{maxRestarts: 3}}
  replicatedJobs:
  - name: node
    replicas: 1
    template:
      spec:
        parallelism: 2
        completions: 2
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            containers:
            - name: train
              command: [torchrun, --nnodes=2, --nproc-per-node=2, train.py]{CONTAINER}{POD}{TOLERATIONS}
"""

TRAINJOB = f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {{name: ours}}
spec:
  mlPolicy:
    numNodes: 1
    torch: {{}}
  template:
    spec:
      failurePolicy: {{maxRestarts: 3}}
      replicatedJobs:
      - name: node
        template:
         metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}}
         spec:
          backoffLimit: 0
          template:
           spec:
            restartPolicy: Never
            containers:
            - name: node{CONTAINER}{POD}{TOLERATIONS}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: digits}}
spec:
  runtimeRef: {{name: ours, kind: TrainingRuntime}}
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [torchrun, train.py]
    env:
    - {{name: EPOCHS, value: "3"}}
"""

MPI_TRAINJOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: mpi}
spec:
  mlPolicy:
    numNodes: 1
    mpi: {numProcPerNode: 2, mpiImplementation: OpenMPI, runLauncherAsNode: true}
  template:
    spec:
      failurePolicy: {maxRestarts: 1}
      replicatedJobs:
      - name: node
        template:
          spec:
            backoffLimit: 0
            template:
              spec:
                restartPolicy: Never
                tolerations: [{operator: Exists, tolerationSeconds: 15}]
                containers: [{name: node, image: mpi:1, command: [/usr/sbin/sshd, -De]}]
      - name: launcher
        dependsOn: [{name: node, status: Ready}]
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template:
              spec:
                restartPolicy: Never
                containers: [{name: node, image: mpi:1}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  runtimeRef: {name: mpi}
  trainer:
    numNodes: 2
    numProcPerNode: 2
    command: [mpirun, -np, "4", --hostfile, /etc/mpi/hostfile, python, train.py]
"""

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: digits}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      tolerations: [{operator: Exists, tolerationSeconds: 15}]
      containers: [{name: train, image: train:1, command: [python, train.py]}]
"""

HOSTFILE = """\
node-0 slots=8
node-1 slots=8
"""

SPEC = """\
kind: Job
name: digits
nodes: 2
run: python train.py
image: train:1
resources: {gpus: 2, shm: 16Gi}
schedule: {tolerations: [{key: cloud/spot, operator: Exists}]}
failure: {restarts: 3}
"""

SERVICE = """\
kind: Service
name: chat
nodes: 2
model: /models/llama
image: serve:1
resources: {gpus: 2, shm: 16Gi}
api_key: {secret: chat/key}
failure: {restarts: 9}
"""

ALL = {
    "MPIJOB": MPIJOB, "DEEPSPEED_MPIJOB": DEEPSPEED_MPIJOB, "PYTORCHJOB": PYTORCHJOB, "JOBSET": JOBSET,
    "TRAINJOB": TRAINJOB, "MPI_TRAINJOB": MPI_TRAINJOB,
    "JOB": JOB, "HOSTFILE": HOSTFILE, "SPEC": SPEC, "SERVICE": SERVICE,
}  # fmt: skip
