"""Mistakes within a pod's template."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.lint.rule import ERROR, EVERY, PODS, PYTORCH, RUNTIME, WARNING, Found, Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.gang import GPU, RDMA, placed_words
from allranks.spec.units import Quantity

SHM = "/dev/shm"
LEAST_SHM = Quantity.parse("1Gi")


def gpu_request_differs(subject: Subject) -> Iterator[Found]:
    """Extended resources whose request is not their limit."""
    for role in subject.roles:
        limits, requests = role.container.at("resources", "limits"), role.container.at("resources", "requests")
        for name, request in requests.fields.items():
            if not (GPU.fullmatch(name) or RDMA.fullmatch(name)) or request.quantity == limits[name].quantity:
                continue
            said = limits[name].text or "none"
            fix = f"write limits: {{{name}: {request.text}}}; a request may be left out"
            yield Found(request, f"{role.name}: {name}: request {request.text}, limit {said}", fix)


def gpu_fraction(subject: Subject) -> Iterator[Found]:
    """Half a GPU, as a resource."""
    for role in subject.roles:
        for name in role.resources:
            amount, at = role.amount(name)
            if (GPU.fullmatch(name) or RDMA.fullmatch(name)) and amount is not None and not amount.whole:
                yield Found(at, f"{role.name}: {name}: {at.text}", "write a whole number")


def shm_small(subject: Subject) -> Iterator[Found]:
    """GPUs, and the 64 MB of /dev/shm that containers have."""
    for role in subject.nodes:
        if not role.gpus or role.pod["hostIPC"].is_true:
            continue
        mount = next((one for one in role.container["volumeMounts"].items if one["mountPath"].text == SHM), None)
        if mount is None:
            fix = f"mount an emptyDir of medium: Memory at {SHM}, with a sizeLimit such as 16Gi"
            yield Found(role.container["volumeMounts"], f"{role.name}: nothing is mounted at {SHM}", fix)
            continue
        volume = next((one for one in role.pod["volumes"].items if one["name"].text == mount["name"].text), Field(None))
        empty = volume["emptyDir"]
        if volume and not empty.is_mapping:
            continue
        if empty["medium"].text != "Memory":
            yield Found(volume or mount, f"{role.name}: {SHM} is on disk", "write medium: Memory")
        if (size := empty["sizeLimit"].quantity) and size < LEAST_SHM:
            yield Found(empty["sizeLimit"], f"{role.name}: {SHM} has {size}", "write sizeLimit: 16Gi")


def value_not_text(subject: Subject) -> Iterator[Found]:
    """A bare number or true where Kubernetes takes text alone."""
    holders = [subject.root["metadata"], *(role.template["metadata"] for role in subject.roles)]
    fields = [value for one in holders for part in ("labels", "annotations") for value in one[part].fields.values()]
    fields += [entry["value"] for one in subject.containers for entry in one["env"].items]
    fields += [word for one in subject.containers for word in placed_words(one)]
    for value in fields:
        if value and not value.is_text and not value.is_mapping and not value.is_list:
            yield Found(value, f"{value.path} is {value.text}, not text", f'write "{value.text}"')


def container_name(subject: Subject) -> Iterator[Found]:
    """The container that the operator looks for by its name."""
    wanted = "pytorch" if subject.kind == "PyTorchJob" else "node"
    for role in subject.roles:
        names = [one["name"].text for one in role.pod["containers"].items]
        if names and wanted not in names and (subject.kind == "PyTorchJob" or role.name in ("node", "launcher")):
            at = role.pod["containers"][0]["name"]
            yield Found(at, f"{role.name}: its containers are named {', '.join(names)}", f"name the main one {wanted}")


def host_network_names(subject: Subject) -> Iterator[Found]:
    """The host's network, and the host's DNS with it."""
    for role in subject.roles:
        policy = role.pod["dnsPolicy"]
        if role.pod["hostNetwork"].is_true and policy.text not in ("ClusterFirstWithHostNet", "None"):
            at = role.pod["hostNetwork"]
            yield Found(
                at, f"{role.name}: hostNetwork without its dnsPolicy", "write dnsPolicy: ClusterFirstWithHostNet"
            )


RULES = (
    Rule("gpu-request-differs", ERROR, PODS, gpu_request_differs,
        "The API server refuses pods whose device request is not the limit; the job exists, and no pod ever "
        "comes."),
    Rule("gpu-fraction", ERROR, PODS, gpu_fraction,
        "Devices are whole: the API server refuses the pods."),
    Rule("shm-small", WARNING, PODS, shm_small,
        "/dev/shm has 64 MB: NCCL fails with 'No space left on device', data loaders with bus errors."),
    Rule("value-not-text", ERROR, EVERY, value_not_text,
        "Kubernetes takes text alone here and refuses the object."),
    Rule("container-name", ERROR, (*PYTORCH, *RUNTIME), container_name,
        "The operator gives variables, command and image to the container of that name, and to no other."),
    Rule("host-network-names", WARNING, ("PyTorchJob", "JobSet", "Job", *RUNTIME), host_network_names,
        "The host's DNS knows no name of the cluster: ranks do not find each other."),
)  # fmt: skip
