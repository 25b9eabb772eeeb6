"""Fields that a kind does not have, with the nearest that it has: by the CRD where it is at hand, else by a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from allranks.lint.rule import ERROR, EVERY, MPI, PYTORCH, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.spec.wording import nearest

# A shape is None (anything), a list of one shape, or a mapping of names to shapes; "*" is any name.
Shape = Any


def _names(text: str, **more: Shape) -> dict[str, Shape]:
    return dict.fromkeys(text.split()) | more


METADATA = _names(
    "name generateName namespace labels annotations finalizers ownerReferences uid resourceVersion selfLink generation "
    "creationTimestamp managedFields deletionTimestamp deletionGracePeriodSeconds"
)
RESOURCES = _names("limits requests claims")
CONTAINER = _names(
    "name image command args workingDir ports envFrom volumeDevices livenessProbe readinessProbe startupProbe "
    "lifecycle terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty "
    "resizePolicy restartPolicy restartPolicyRules",
    env=[_names("name value valueFrom")],
    resources=RESOURCES,
    volumeMounts=[_names("name mountPath readOnly subPath subPathExpr mountPropagation recursiveReadOnly")],
)
POD = _names(
    "volumes initContainers ephemeralContainers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds "
    "dnsPolicy nodeSelector serviceAccountName serviceAccount automountServiceAccountToken nodeName hostNetwork "
    "hostPID hostIPC shareProcessNamespace securityContext imagePullSecrets hostname subdomain affinity schedulerName "
    "hostAliases priorityClassName priority dnsConfig readinessGates runtimeClassName enableServiceLinks "
    "preemptionPolicy overhead topologySpreadConstraints setHostnameAsFQDN os hostUsers schedulingGates resourceClaims "
    "resources schedulingGroup hostnameOverride workloadRef",
    containers=[CONTAINER],
    tolerations=[_names("key operator value effect tolerationSeconds")],
)
TEMPLATE = {"metadata": METADATA, "spec": POD}
SCHEDULING = _names("minAvailable queue minResources priorityClass scheduleTimeoutSeconds")
RUN_POLICY = _names(
    "cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit suspend managedBy",
    schedulingPolicy=SCHEDULING,
)
REPLICA = _names("replicas restartPolicy", template=TEMPLATE)
JOB = _names(
    "parallelism completions activeDeadlineSeconds podFailurePolicy successPolicy backoffLimit backoffLimitPerIndex "
    "maxFailedIndexes selector manualSelector ttlSecondsAfterFinished completionMode suspend podReplacementPolicy "
    "managedBy scheduling",
    template=TEMPLATE,
)
REPLICATED = _names("name groupName replicas dependsOn", template={"metadata": METADATA, "spec": JOB})
JOBSET = _names(
    "suspend coordinator managedBy ttlSecondsAfterFinished startupPolicy volumeClaimPolicies",
    replicatedJobs=[REPLICATED],
    network=_names("enableDNSHostnames subdomain publishNotReadyAddresses"),
    successPolicy=_names("operator targetReplicatedJobs"),
    failurePolicy=_names("maxRestarts restartStrategy rules"),
)
RUNTIME = _names(
    "podGroupPolicy",
    mlPolicy=_names(
        "numNodes torch jax xgboost flux",
        mpi=_names("numProcPerNode mpiImplementation sshAuthMountPath runLauncherAsNode"),
    ),
    template={"metadata": METADATA, "spec": JOBSET},
)
SPECS: dict[str, Shape] = {
    "MPIJob": _names(
        "slotsPerWorker runLauncherAsWorker mpiImplementation sshAuthMountPath launcherCreationPolicy",
        runPolicy=RUN_POLICY,
        mpiReplicaSpecs={"Launcher": REPLICA, "Worker": REPLICA},
    ),
    "MPIJob/v1": _names(
        "slotsPerWorker mainContainer cleanPodPolicy",
        runPolicy=RUN_POLICY,
        mpiReplicaSpecs={"Launcher": REPLICA, "Worker": REPLICA},
    ),
    "PyTorchJob": _names(
        "nprocPerNode",
        runPolicy=RUN_POLICY,
        pytorchReplicaSpecs={"Master": REPLICA, "Worker": REPLICA},
        elasticPolicy=_names(
            "minReplicas maxReplicas rdzvBackend rdzvPort rdzvHost rdzvId rdzvConf standalone nProcPerNode "
            "maxRestarts metrics"
        ),
    ),
    "TrainJob": _names(
        "runtimeRef initializer runtimePatches podSpecOverrides podTemplateOverrides suspend activeDeadlineSeconds "
        "managedBy labels annotations",
        trainer=_names("image command args env numNodes numProcPerNode", resourcesPerNode=RESOURCES),
    ),
    "JobSet": JOBSET,
    "Job": JOB,
    "TrainingRuntime": RUNTIME,
    "ClusterTrainingRuntime": RUNTIME,
}
NOT_HERE = "a TrainJob has none: it belongs into its runtime's template"
ANYWHERE = {
    "TrainJob": dict.fromkeys(
        ["backoffLimit", "ttlSecondsAfterFinished", "failurePolicy", "runPolicy", "restartPolicy", "cleanPodPolicy"],
        NOT_HERE,
    )
}


def shape_of(subject: Subject) -> Shape:
    """The CRD's own shape where that is given, else the table's."""
    version = subject.root["apiVersion"].text.rpartition("/")[2]
    for key in (f"{subject.kind}/{version}", subject.kind):
        if key in subject.schemas:
            return subject.schemas[key]
    spec = SPECS.get(f"{subject.kind}/{version}", SPECS[subject.kind])
    return {"apiVersion": None, "kind": None, "metadata": METADATA, "spec": spec, "status": None}


def unknown_field(subject: Subject) -> Iterator[Found]:
    """A field that this kind does not have."""
    for field, known in _unknown(subject.root, shape_of(subject)):
        name = field.path.rpartition(".")[2]
        near = nearest(name, known)
        fix = ANYWHERE.get(subject.kind, {}).get(name) or (
            f"did you mean {near}?" if near else f"known are {_few(known)}"
        )
        if name not in ("Worker", "Launcher", "Master"):  # the rule worker-outside says more of them
            yield Found(field, f"{subject.kind} has no field {field.path}", fix)


def worker_outside(subject: Subject) -> Iterator[Found]:
    """A replica spec at the wrong depth, where the operator does not look."""
    holder = "mpiReplicaSpecs" if subject.kind == "MPIJob" else "pytorchReplicaSpecs"
    names = ("Launcher", "Worker") if subject.kind == "MPIJob" else ("Master", "Worker")
    for field in subject.spec.walk():
        parent, _, name = field.path.rpartition(".")
        if name in names and parent != f"spec.{holder}":
            fix = f"indent it so that it is spec.{holder}.{name}"
            yield Found(field, f"{name} stands under {parent}, outside {holder}", fix)


def wrong_type(subject: Subject) -> Iterator[Found]:
    """A word where a mapping or a list must stand, or the other way round."""
    for field, wanted in _wrong(subject.root, shape_of(subject)):
        found = "a list" if field.is_list else "a mapping" if field.is_mapping else field.text or "nothing"
        yield Found(field, f"{field.path or subject.kind} is {found}", f"write {wanted}")


def _wrong(field: Field, shape: Shape) -> Iterator[tuple[Field, str]]:
    if not field or shape is None:
        return
    if isinstance(shape, list):
        if not field.is_list:
            yield field, "a list, lines that begin with '- '"
        for item in field.items:
            yield from _wrong(item, shape[0])
    elif not field.is_mapping:
        yield field, "a mapping, lines of 'name: value'"
    for name, below in field.fields.items() if isinstance(shape, dict) else ():
        yield from _wrong(below, shape.get(name, shape.get("*")))


def _few(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _unknown(field: Field, shape: Shape) -> Iterator[tuple[Field, list[str]]]:
    if isinstance(shape, list):
        for item in field.items:
            yield from _unknown(item, shape[0])
    elif isinstance(shape, dict):
        for name, below in field.fields.items():
            if name in shape:
                yield from _unknown(below, shape[name])
            elif "*" not in shape:
                yield below, list(shape)
            else:
                yield from _unknown(below, shape["*"])


def shapes(crd: Any) -> dict[str, Shape]:
    """The shapes of a CustomResourceDefinition by ``KIND/VERSION``, and by ``KIND`` of its stored version."""
    found: dict[str, Shape] = {}
    spec = crd["spec"] if isinstance(crd, dict) else {}
    for version in spec["versions"]:
        shape = _shape(version["schema"]["openAPIV3Schema"])
        shape["metadata"] = METADATA
        found[f"{spec['names']['kind']}/{version['name']}"] = shape
        if version.get("storage"):
            found[spec["names"]["kind"]] = shape
    return found


def _shape(schema: Any) -> Shape:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return None
    if "properties" in schema:
        return {name: _shape(below) for name, below in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        return [_shape(schema["items"])]
    return (
        {"*": _shape(schema["additionalProperties"])} if isinstance(schema.get("additionalProperties"), dict) else None
    )


RULES = (
    Rule("worker-outside", ERROR, (*MPI, *PYTORCH), worker_outside,
        "No pod comes of it: the operator looks for the roles in one place alone."),
    Rule("unknown-field", ERROR, EVERY, unknown_field,
        "kubectl refuses it, or it is dropped in silence."),
    Rule("wrong-type", ERROR, EVERY, wrong_type,
        "The API server refuses the object."),
)  # fmt: skip
