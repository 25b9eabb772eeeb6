"""What a pod's template says of each node of a gang."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from allranks.convert.draft import Draft
from allranks.manifest.field import Field
from allranks.manifest.gang import GPU, NETWORKS, Role
from allranks.manifest.launch import FOUND_BY_US
from allranks.spec.field import OURS
from allranks.spec.job import Toleration, Volume
from allranks.spec.wording import sentence

SHM = "/dev/shm"
SCHEDULERS = {
    "volcano": "volcano",
    "kai-scheduler": "kai",
    "runai-scheduler": "kai",
    "scheduler-plugins-scheduler": "coscheduling",
}
TOPOLOGY = {
    "required": "kueue.x-k8s.io/podset-required-topology",
    "preferred": "kueue.x-k8s.io/podset-preferred-topology",
}
KUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY = "kueue.x-k8s.io/priority-class"
KAI = "kai.scheduler/queue"
VOLCANO = "scheduling.volcano.sh/queue-name"
WHOLE = {
    "pod": (
        "imagePullSecrets", "serviceAccountName", "automountServiceAccountToken", "securityContext", "affinity",
        "topologySpreadConstraints", "schedulerName", "runtimeClassName", "hostNetwork", "hostIPC", "dnsPolicy",
        "dnsConfig", "hostAliases", "resourceClaims", "initContainers",
    ),
    "container": ("securityContext", "imagePullPolicy"),
}  # fmt: skip
"""What a spec takes as it stands: fields that say nothing of ranks, and that no engine sets from elsewhere."""
NAMED_BY_US = re.compile(r"allranks(-.*)?|volume-\d+")
# Set for ranks by whoever starts them.
LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "I_MPI_", "HYDRA_", "PET_", "ALLRANKS_")


def carry_pod(draft: Draft, role: Role) -> None:
    """Carry all of a role's template but its command."""
    container, pod = role.container, role.pod
    draft.take(container["name"], role.template.at("metadata", "name"))
    _simple(draft, container["image"], "image")
    _simple(draft, container["workingDir"], "workdir")
    carry_env(draft, container)
    carry_resources(draft, role)
    _volumes(draft, pod, container)
    _schedule(draft, pod)
    _whole(draft, pod, container)
    carry_annotations(draft, role.template["metadata"])
    if (grace := pod["terminationGracePeriodSeconds"]).number is not None:
        draft.set("failure.grace", f"{grace.number}s", grace)


def _simple(draft: Draft, origin: Field, path: str) -> None:
    if origin.text:
        draft.set(path, origin.text, origin)


def _whole(draft: Draft, pod: Field, container: Field) -> None:
    for part, fields in (("pod", pod), ("container", container)):
        for name in WHOLE[part]:
            if (origin := fields[name]) and origin.path not in draft.taken and draft.fits(origin):
                draft.put((part, name), _plain(origin), origin)


def _plain(origin: Field) -> Any:
    return origin.node.plain() if origin.node else None


def _entry(draft: Draft, part: str, name: str, entry: dict[str, Any], origin: Field) -> None:
    """Carry one entry of a list below ``pod`` or ``container``; one that is there already is not written twice."""
    if not draft.fits(origin):
        return
    entries = draft.fields.setdefault(part, {}).setdefault(name, [])
    entries += [] if entry in entries else [entry]
    draft.take(origin)


def carry_env(draft: Draft, container: Field) -> None:
    """Variables with a value, and whole Secrets and ConfigMaps; what Kubernetes fills in stays the container's."""
    for entry in container["env"].items:
        name, value = entry["name"].text, entry["value"]
        if not name:
            draft.lose(entry, "a variable has a name and a value")
        elif name in OURS or name.startswith(LAUNCHERS):
            draft.lose(entry, FOUND_BY_US, f"the variable {name}")
        elif entry["valueFrom"]:
            _entry(draft, "container", "env", {"name": name, "valueFrom": _plain(entry["valueFrom"])}, entry)
        elif value and not value.is_scalar:
            draft.lose(entry, "a variable's value is text", f"the variable {name}")
        elif "$(" in value.text:
            draft.lose(entry, "only Kubernetes puts $(NAME) in", f"the variable {name}")
        else:
            draft.put(("env", name), value.text, entry)
    for entry in container["envFrom"].items:
        for kind in ("secret", "configMap"):
            if (source := entry[f"{kind}Ref"]["name"]).text and not entry["prefix"]:
                whole = f"{kind.lower()}/{source.text}"
                draft.set("env_from", [*draft.fields.get("env_from", []), whole], entry)


def carry_resources(draft: Draft, role: Role) -> None:
    """Limits over requests; both are accounted for."""
    for name in role.resources:
        amount, origin = role.amount(name)
        requests = role.container.at("resources", "requests", name)
        if amount is None:
            continue
        if name == role.gpu_resource and amount.whole:
            draft.set("resources.gpus", int(amount), origin)
            draft.fields["resources"]["gpu_resource"] = name
        elif name in ("cpu", "memory"):
            draft.set(f"resources.{name}", str(amount), origin)
        elif not GPU.fullmatch(name) and amount.whole and "storage" not in name:
            draft.put(("resources", "extra", name), str(amount), origin)
        if requests and requests.path != origin.path:
            if requests.quantity == amount:
                draft.take(requests)
            else:
                draft.lose(
                    requests, f"a node of a gang is guaranteed what it may use: the limit, {amount}, was carried"
                )


def _volumes(draft: Draft, pod: Field, container: Field) -> None:
    sources = {volume["name"].text: volume for volume in pod["volumes"].items}
    for mount in container["volumeMounts"].items:
        source, path = sources.get(mount["name"].text, Field(None)), mount["mountPath"].text
        claim, host = source.at("persistentVolumeClaim", "claimName").text, source.at("hostPath", "path").text
        if path == SHM and (size := source.at("emptyDir", "sizeLimit").text):
            draft.set("resources.shm", size, source)
            draft.take(mount)
        elif not source or not path:
            draft.lose(mount, "no volume of the pod has this name", f"the volume at {path or '?'}")
        elif not (claim or host) or set(mount.fields) - {"name", "mountPath", "readOnly"}:
            _own_volume(draft, source, mount)
        else:
            draft.take_fit(mount["readOnly"])
            read_only = mount["readOnly"].is_true or source.at("persistentVolumeClaim", "readOnly").is_true
            values = {"claim": claim or None, "host": None if claim else host, "path": path, "read_only": read_only}
            _add(draft, "volumes", Volume, values, mount)
            if kind := source.at("hostPath", "type"):
                draft.lose(kind, "a host's folder must be there already")
            draft.take(source)
    for source in sources.values():  # what init containers alone mount
        if source.path not in draft.taken and pod["initContainers"]:
            _own_volume(draft, source)


def _own_volume(draft: Draft, source: Field, mount: Field | None = None) -> None:
    """Carry a volume that a spec has no words for as it stands, beside those that allranks makes."""
    name = source["name"].text
    if NAMED_BY_US.fullmatch(name):
        draft.lose(mount or source, f"allranks has a volume {name} of its own: give this one another name")
        draft.take(source)
        return
    _entry(draft, "pod", "volumes", _plain(source), source)
    if mount:
        _entry(draft, "container", "volumeMounts", _plain(mount), mount)


def _add(
    draft: Draft, name: str, model: type[BaseModel], values: dict[str, Any], origin: Field, part: str = ""
) -> None:
    """Add one to a list, if it fits."""
    holder = draft.fields.setdefault(part, {}) if part else draft.fields
    known = holder.setdefault(name, [])
    try:
        model.model_validate(values)
    except ValidationError as error:
        draft.lose(origin, sentence(error.errors(include_url=False)[0]))
        return
    if model is Volume and any(one["path"] == values["path"] for one in known):
        draft.lose(origin, "two volumes have this path")
        return
    draft.take(origin)
    known.append({key: value for key, value in values.items() if value not in (None, False)})


def _schedule(draft: Draft, pod: Field) -> None:
    for name, label in pod["nodeSelector"].fields.items():
        if label.is_scalar:
            draft.put(("schedule", "node_selector", name), label.text, label)
        else:
            draft.lose(label, "a label's value is text")
    _simple(draft, pod["priorityClassName"], "schedule.priority")
    if (scheduler := pod["schedulerName"]).text in SCHEDULERS:
        draft.set("schedule.gang", SCHEDULERS[scheduler.text], scheduler)
    for one in pod["tolerations"].items:
        if set(one.fields) - {"key", "operator", "value", "effect", "tolerationSeconds"}:
            continue
        if any(below.is_mapping or below.is_list for below in one.fields.values()):
            continue  # without its key it would tolerate everything
        seconds = one["tolerationSeconds"]
        values = {name: one[name].text or None for name in ("key", "operator", "value", "effect")}
        values["operator"] = values["operator"] or "Equal"
        if seconds and seconds.number is None:
            continue
        _add(draft, "tolerations", Toleration, values | {"toleration_seconds": seconds.number}, one, "schedule")


def carry_annotations(draft: Draft, metadata: Field) -> None:
    """Networks, queues and topology, of a pod's template or of the object itself."""
    annotations, labels = metadata["annotations"], metadata["labels"]
    if (networks := annotations[NETWORKS]).text:
        draft.put(("network", "annotations", NETWORKS), networks.text, networks)
    for field, name in TOPOLOGY.items():
        if annotations[name].text:
            draft.put(("schedule", "topology"), {field: annotations[name].text}, annotations[name])
    queues = (("kueue", labels[KUEUE]), ("kai", labels[KAI]), ("volcano", annotations[VOLCANO]))
    for gang, queue in queues:
        if queue.text:
            draft.set("schedule.queue", queue.text, queue)
            draft.set("schedule.gang", gang)
    if labels[KUEUE_PRIORITY].text:
        draft.set("schedule.priority", labels[KUEUE_PRIORITY].text, labels[KUEUE_PRIORITY])


def same(draft: Draft, carried: Field, other: Field) -> None:
    """Account for another role's template: what is as in the carried one is carried, the rest is lost."""
    if not other or other.path in draft.taken:
        return
    if carried.node and other.node and carried.node.plain() == other.node.plain():
        draft.take(other)
    elif carried.is_mapping and other.is_mapping:
        for name, below in other.fields.items():
            same(draft, carried[name], below)
    elif carried.is_list and other.is_list and len(carried.items) == len(other.items):
        for index, below in enumerate(other.items):
            same(draft, carried[index], below)
    else:
        draft.lose(other, "all nodes of a gang are alike")
