"""What an operator makes of an object: recorded from a real run, with what differs between runs masked.

One file an operator's version, `contracts/<operator>-<version>.json`, one entry in it a smoke test. A test whose record
differs from the file fails and says, line by line, what changed; ``--record`` writes the file anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cluster.namespace import Namespace, Object

HERE = Path(__file__).parent / "contracts"
OURS = "programs"  # the ConfigMap of the tests, mounted where it is needed
LOOK = "LOOK "  # what programs/look.py begins its line with

UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
HASH = re.compile(r"\b[0-9a-f]{40,64}\b")
TIME = re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z")
ADDRESS = re.compile(r"\b10(\.\d{1,3}){3}\b")
# Kinds whose objects get names with a random end from their controllers.
GENERATED = ("rayclusters.ray.io", "workloads.kueue.x-k8s.io")
# What Open MPI and sshd give to their processes holds numbers of processes, jobs and ports; some values are all random.
NUMBER = re.compile(r"\d{2,}|(?<=_)\d+$")
NUMBERED = re.compile(
    r"SSH_|PMIX_|OMPI_FILE_LOCATION|OMPI_MCA_(ess_base_jobid|orte_(\w+_uri|jobfam_session_dir|top_session_dir))"
)
RANDOM = ("OMPI_MCA_orte_precondition_transports", "TORCHELASTIC_ERROR_FILE", "RAY_RAYLET_PID")
SERVICE = re.compile(r"KUBERNETES_|\w+_(SERVICE_(HOST|PORT)|PORT_\d)|_$|SHLVL|PWD|OLDPWD")


def record(namespace: Namespace, inside: Mapping[str, Object] | None = None) -> Object:
    """The pods, what was made beside them, and what their processes said with look.py: in their logs, or ``inside``."""
    pods = namespace.list("pods")
    names = _Names(namespace)
    beside = {
        kind: {one["metadata"]["name"]: view(one) for one in namespace.list(kind) if not _default(one)}
        for kind, view in BESIDE.items()
        if namespace.serves(kind)
    }
    seen = {
        "pods": {pod["metadata"]["name"]: _pod(pod) for pod in pods},
        **beside,
        "inside": dict(sorted(_inside(namespace.logs())))
        | {name: _around(one) for name, one in (inside or {}).items()},
    }
    masked: Object = names.mask({key: value for key, value in seen.items() if value})
    return masked


def compare(operator: str, version: str, entry: str, seen: Object, write: bool) -> None:
    """Hold what was seen against the contract, or write it down.

    Raises:
        AssertionError: it differs; the message has one line a difference.
    """
    path = HERE / f"{operator}-{version}.json"
    contract = json.loads(path.read_text()) if path.exists() else {}
    if write:
        contract[entry] = seen
        path.write_text(json.dumps(contract, indent=1, sort_keys=True) + "\n")
        return
    known = path if path.exists() else _nearest(operator, path)
    lines = list(differences(json.loads(known.read_text()).get(entry, {}), seen))
    if lines or known != path:
        told = "\n".join(f"  {line}" for line in lines) or "  nothing"
        raise AssertionError(
            f"{operator} {version} makes of {entry} other than {known.name} says:\n{told}\n"
            "If that is right, write it down: the same test with --record"
        )


def _nearest(operator: str, path: Path) -> Path:
    others = sorted(HERE.glob(f"{operator}-*.json"))
    if not others:
        raise AssertionError(f"there is no {path}; write it: the same test with --record")
    return others[-1]


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """One line for each place where two records differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            where = f"{at} / {key}" if at else key
            if key not in new:
                yield f"{where}: gone, was {json.dumps(old[key])}"
            elif key not in old:
                yield f"{where}: new, {json.dumps(new[key])}"
            else:
                yield from differences(old[key], new[key], where)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{at}[{number}]")
    elif old != new:
        yield f"{at}: was {json.dumps(old)}, is {json.dumps(new)}"


class _Names:
    """Masks what is another in every run: generated names, the namespace, addresses, times, hashes."""

    def __init__(self, namespace: Namespace) -> None:
        self._known = {namespace.name: "<namespace>"}
        for kind in (*GENERATED, "pods"):
            for found in namespace.list(kind) if namespace.serves(kind) else ():
                meta = found["metadata"]
                if meta.get("generateName") or kind in GENERATED:
                    self._known[meta["name"]] = f"{meta['name'].rpartition('-')[0]}-<random>"

    def mask(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self.mask(key): self.mask(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.mask(one) for one in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for name in sorted(self._known, key=len, reverse=True):
            text = text.replace(name, self._known[name])
        for pattern, mask in ((UID, "<uid>"), (HASH, "<hash>"), (TIME, "<time>"), (ADDRESS, "<address>")):
            text = pattern.sub(mask, text)
        return text


def _default(found: Object) -> bool:
    """Whether it is in every namespace, or was put there by the test."""
    return found["metadata"]["name"] in (OURS, "kube-root-ca.crt")


def _meta(found: Object) -> Object:
    meta = found["metadata"]
    owners = [f"{owner['kind']} {owner['name']}" for owner in meta.get("ownerReferences", [])]
    annotations = {
        name: value
        for name, value in meta.get("annotations", {}).items()
        if not name.startswith("kubectl.kubernetes.io")
    }
    return _some(owners=owners, labels=meta.get("labels"), annotations=annotations)


def _some(**fields: Any) -> Object:
    return {name: value for name, value in fields.items() if value not in (None, {}, [], "")}


def _pod(pod: Object) -> Object:
    spec = pod["spec"]
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    plain = ("hostname", "subdomain", "restartPolicy", "dnsConfig", "hostNetwork", "setHostnameAsFQDN", "schedulerName",
             "securityContext", "nodeSelector", "schedulingGates")  # fmt: skip
    parts = {name: spec.get(name) for name in plain}
    parts["init"] = {one["name"]: _container(one, volumes) for one in spec.get("initContainers", [])}
    parts["containers"] = {one["name"]: _container(one, volumes) for one in spec["containers"]}
    return {**_meta(pod), **_some(**parts)}


def _container(container: Object, volumes: Mapping[str, Object]) -> Object:
    env = {one["name"]: one.get("value", one.get("valueFrom", "")) for one in container.get("env", [])}
    mounts = {
        mount["mountPath"]: _source(volumes[mount["name"]], mount)
        for mount in container["volumeMounts"]
        if mount["name"] != OURS and not mount["name"].startswith("kube-api-access")
    }
    names = ("image", "command", "args", "ports", "resources", "readinessProbe", "livenessProbe", "startupProbe",
             "securityContext", "lifecycle")  # fmt: skip
    return _some(env=env, mounts=mounts, **{name: container.get(name) for name in names})


def _source(volume: Object, mount: Object) -> Object:
    """Where a mount is from; modes as people write them, in octal."""
    source: Object = json.loads(json.dumps({**volume, **_some(subPath=mount.get("subPath"))}))
    source.pop("name")
    for kind in ("secret", "configMap"):
        if kind in source:
            _octal(source[kind])
            for item in source[kind].get("items", []):
                _octal(item)
    return source


def _octal(item: Object) -> None:
    for name in ("defaultMode", "mode"):
        if isinstance(item.get(name), int):
            item[name] = f"{item[name]:04o}"


def _service(found: Object) -> Object:
    names = ("clusterIP", "type", "selector", "ports", "publishNotReadyAddresses")
    spec = {name: found["spec"].get(name) for name in names}
    if spec["clusterIP"] != "None":
        spec["clusterIP"] = "<address>"
    return {**_meta(found), **_some(**spec)}


def _job(found: Object) -> Object:
    names = ("parallelism", "completions", "completionMode", "backoffLimit", "podReplacementPolicy", "suspend",
             "ttlSecondsAfterFinished", "activeDeadlineSeconds")  # fmt: skip
    return {**_meta(found), **_some(**{name: found["spec"].get(name) for name in names})}


def _config_map(found: Object) -> Object:
    return {**_meta(found), **_some(data=found.get("data"))}


def _secret(found: Object) -> Object:
    """The names of its keys, never what they hold."""
    return {**_meta(found), "type": found["type"], "keys": sorted(found.get("data", {}))}


def _workload(found: Object) -> Object:
    return {
        **_meta(found),
        "podSets": [_some(name=one["name"], count=one["count"]) for one in found["spec"]["podSets"]],
    }


BESIDE = {
    "services": _service,
    "jobs.batch": _job,
    "configmaps": _config_map,
    "secrets": _secret,
    "workloads.kueue.x-k8s.io": _workload,
}


def _inside(logs: Mapping[str, str]) -> Iterator[tuple[str, Object]]:
    """What each process that ran look.py found around it, under the name that it gave itself."""
    for log in logs.values():
        for line in log.splitlines():
            _, found, text = line.partition(LOOK)
            if found:
                said = json.loads(text)
                yield said["name"], _around(said)


def _around(said: Object) -> Object:
    env = {name: _own(name, value) for name, value in said["env"].items() if not SERVICE.match(name)}
    return _some(**{**said, "env": env, "name": None})


def _own(name: str, value: str) -> str:
    if name in RANDOM:
        return "<random>"
    return NUMBER.sub("<number>", ADDRESS.sub("<address>", value)) if NUMBERED.match(name) else value
