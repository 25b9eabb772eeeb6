"""What the engine ray makes of a service: a Serve config, as ``serve deploy`` takes it, or a RayService around it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.engines import honoured, told
from allranks.engines.engine import Plan
from allranks.engines.kubernetes.manifest import Explained, merge, without_nothing
from allranks.engines.local.rundir import cache_home
from allranks.errors import SpecError
from allranks.serving.probe import origin
from allranks.spec.service import KEY_VARIABLE, ApiKey

if TYPE_CHECKING:
    from allranks.spec.job import Job
    from allranks.spec.service import Service

ENGINE = "ray"
APP = "allranks.engines.ray.app:build"
COORDINATOR_CPUS = 0.1
SLACK = 15.0
"""Seconds that Serve gives a gang to end beyond its grace."""
MANY = 100_000
"""Requests at once that Serve lets through to the door: the gangs' own limits are the ones that count."""
SERVE_ENV = {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "5"}
"""For Serve's controller: else it sees only after half a minute that its HTTP proxy is gone (Ray 2.60.0)."""
NODE = "allranks-node"
"""Ray's name for the one node that a RayService's worker pod is there for, whatever else would fit into it."""
GPUS = ("nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu")
"""What Kubernetes calls what Ray calls GPU."""
WHY_NOT = {
    "schedule": "nothing of Ray queues or ranks gangs; a placement group waits until all of it fits",
    "pod": "only a RayService has pods (engines.ray.kuberay)",
    "container": "only a RayService has containers (engines.ray.kuberay)",
    "image": "Ray's hosts have what is installed there; only a RayService has an image (engines.ray.kuberay)",
    "env_from": "only a RayService has Secrets and ConfigMaps (engines.ray.kuberay)",
    "volumes": "ranks see the files of Ray's hosts; only a RayService has volumes (engines.ray.kuberay)",
    "resources.shm": "only a RayService sets it (engines.ray.kuberay)",
    "network.annotations": "only a RayService has pods (engines.ray.kuberay)",
    "failure.clean": "a service's actors always end with it",
    "failure.ttl": "the record of a service is kept until its name is used again",
    "failure.deadline": "a service ends when it is ended",
    "engines.ray.redis": "it is for a RayService (engines.ray.kuberay)",
    "engines.ray.redis_password": "it is for a RayService (engines.ray.kuberay)",
    "engines.ray.upgrade": "it is for a RayService (engines.ray.kuberay)",
    "engines": "it is for another engine",
}


def plan_service(service: Service, folder: Path) -> Plan:
    """Render the service. Raises SpecError, EngineError."""
    from allranks.spec.write import dump

    if service.engines.ray.kuberay:
        from allranks.engines.ray import kuberay

        return kuberay.plan(service, folder)
    if service.api_key is not None and service.api_key.secret:
        raise SpecError(
            "api_key.secret: only a RayService has Secrets (engines.ray.kuberay); use api_key.env or api_key.file"
        )
    here = is_here(service)
    made = config(service, folder, here)
    document = merge(made, service.engines.ray.manifest)
    if where := next(_taken_away(made, document), ""):
        raise SpecError(
            f"engines.ray.manifest: {where} cannot be taken away, or be another kind of thing: the service is made "
            "of it; allowed: other values, and more fields of Serve's config; see: allranks plan"
        )
    notes, spec = tuple(_notes(service, here)), dump(_absolute(service, folder))
    return Plan(service.name, ENGINE, (document,), notes, spec, _address(service))


def _taken_away(made: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield where a patched document lacks something that was made, or has another kind of thing in its place."""
    kind = next((kind for kind in (dict, list) if isinstance(made, kind)), None)
    if kind is None:
        return
    if not isinstance(found, kind) or (kind is list and len(found) != len(made)):
        yield where
        return
    for key, value in made.items() if kind is dict else enumerate(made):
        if value is None:
            continue
        name = f"{where}.{key}" if where else str(key)
        if kind is dict and key not in found:
            yield name
        else:
            yield from _taken_away(value, found[key], name)


def _address(service: Service) -> str:
    """Serve's HTTP is on every host, so on the one that the cluster's address names."""
    options = service.engines.ray
    named, colon, _ = cluster(service).rpartition(":")
    host = service.host or (named if colon else "127.0.0.1")
    return origin(host, options.port or service.port) + options.route.rstrip("/")


def cluster(service: Service) -> str:
    """Address of the Ray cluster to use, empty for one that is started for the service; RAY_ADDRESS is Ray's own."""
    found = service.engines.ray.address or os.environ.get("RAY_ADDRESS", "")
    return "" if found == "local" else found


def is_here(service: Service) -> bool:
    """Whether the Ray cluster is one that is started for the service on this machine, and ended with it."""
    return not (service.engines.ray.kuberay or cluster(service))


def config(service: Service, folder: Path, here: bool) -> dict[str, Any]:
    """The Serve config. ``here`` is whether Ray's hosts are this machine."""
    options = service.engines.ray
    if service.run is not None and options.port in (None, service.port):
        raise SpecError(
            f"engines.ray.port: the command of 'run' listens on port {service.port} itself; "
            "Serve's own HTTP needs another one: set engines.ray.port"
        )
    if service.run is not None and service.replicas > 1 and here:
        raise SpecError(
            f"replicas: found {service.replicas}; the command of 'run' listens on port {service.port} in each gang, "
            "and all are on this machine; allowed: 1, or a Ray cluster (engines.ray.address)"
        )
    if options.strategy == "STRICT_SPREAD" and service.nodes > 1 and here:
        raise SpecError(
            f"engines.ray.strategy: found STRICT_SPREAD, with {service.nodes} nodes, and all are on this machine; "
            "allowed: another one, or a Ray cluster (engines.ray.address)"
        )
    if service.launcher == "mpirun":
        raise SpecError("launcher mpirun: engine ray does not have it; allowed: native, torchrun, deepspeed, once")
    app = {
        "name": service.name,
        "route_prefix": options.route,
        "import_path": APP,
        "args": _told(service, folder, here),
    }
    host = service.host or ("127.0.0.1" if here else "0.0.0.0")
    return Explained(
        {
            "proxy_location": "HeadOnly" if here else "EveryNode",
            "http_options": {"host": host, "port": options.port or service.port},
            "applications": [app],
        },
        http_options="of Serve as a whole: on a cluster where it runs already they stay as they are",
    )


def _told(service: Service, folder: Path, here: bool) -> dict[str, Any]:
    """What the application's parts are told, and the options that Serve is given for each."""
    gang = _gang(service, folder, here)
    grace = float(gang["grace"])
    return {
        "gang": gang,
        "own": service.model is not None,
        "address": "127.0.0.1" if here else "",
        "port": service.port,
        "ready": service.ready,
        "replicas": service.replicas,
        "wants_key": service.api_key is not None,
        "hosts": service.nodes * service.replicas + 1 if service.engines.ray.kuberay else 0,
        "actor": _actor(gang, service),
        "door": {
            "num_replicas": 1,
            "max_ongoing_requests": MANY,
            "ray_actor_options": {"num_cpus": 0},
            "health_check_period_s": 1.0,
            "health_check_timeout_s": 5.0,
            "graceful_shutdown_timeout_s": grace + SLACK,
        },
        "gangs": {
            "num_replicas": service.replicas,
            "placement_group_bundles": list(_bundles(gang, service)),
            "placement_group_strategy": service.engines.ray.strategy,
            "ray_actor_options": {"num_cpus": COORDINATOR_CPUS},
            "health_check_period_s": 1.0,
            "health_check_timeout_s": 5.0,
            "graceful_shutdown_timeout_s": grace + SLACK,
            "graceful_shutdown_wait_loop_s": 0.1,
        },
    }


def _gang(service: Service, folder: Path, here: bool) -> dict[str, Any]:
    job = _job(service, folder, here)
    agents = told.agents(job, ENGINE)
    env = dict(job.env)
    if here:
        env = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", **env}
    workdir = str(folder) if here and not job.workdir else _path(job, folder, here)
    network = {"rdma": job.network.rdma} if not here else {}
    return {
        **agents,
        "env": env,
        "workdir": workdir,
        "cache": str(cache_home()) if here else "",
        "gpus": job.resources.gpus,
        "heartbeat": 1.0,
        "lease": 5.0,
        **network,
    }


def _path(job: Job, folder: Path, here: bool) -> str:
    workdir = os.path.expanduser(job.workdir or "")
    return str((folder / workdir).absolute()) if here else workdir


def _job(service: Service, folder: Path, here: bool) -> Job:
    """The service's gang. Where node 0 listens is added to the command of a model's ranks where that is known."""
    if service.model is None:
        return service.gang()
    from allranks.serving.options import Options, of_service, serving

    options = of_service(service, folder)
    if here:
        from allranks.serving.check import must_be_servable

        must_be_servable(service, options)
    found = replace(
        options, name=service.name if options.model.startswith("/") else options.name,
        host=Options.host, port=Options.port, key_env=KEY_VARIABLE if service.api_key else "", key_file="",
    )  # fmt: skip
    return serving(service, found, "python")


def taken(gang: dict[str, Any], service: Service) -> dict[str, float]:
    """What a node takes of its host, as Ray counts it: a CPU for each rank where nothing is said."""
    wanted = service.resources
    needs = {"CPU": float(wanted.cpu.value if wanted.cpu else gang["ranks_per_node"])}
    if wanted.gpus:
        needs["GPU" if wanted.gpu_resource in GPUS else wanted.gpu_resource] = float(wanted.gpus)
    if wanted.memory:
        needs["memory"] = float(int(wanted.memory))
    if service.engines.ray.kuberay:
        needs[NODE] = 1.0
    return {**needs, **{name: float(amount.value) for name, amount in wanted.extra.items()}}


def _bundles(gang: dict[str, Any], service: Service) -> Iterator[dict[str, float]]:
    """One for each node; the coordinator is in the first."""
    needs = taken(gang, service)
    for node in range(int(gang["nodes"])):
        yield {**needs, "CPU": round(needs["CPU"] + (COORDINATOR_CPUS if node == 0 else 0), 4)}


def _actor(gang: dict[str, Any], service: Service) -> dict[str, Any]:
    needs = taken(gang, service)
    named = {"num_cpus": needs.pop("CPU"), "num_gpus": needs.pop("GPU", None), "memory": needs.pop("memory", None)}
    return dict(without_nothing({**named, "resources": needs}))


def _absolute(service: Service, folder: Path) -> Service:
    """The same with the key's file by its full path: whoever submits the plan may be elsewhere."""
    key = service.api_key
    if key is None or not key.file:
        return service
    return service.model_copy(update={"api_key": ApiKey(file=str((folder / Path(key.file).expanduser()).absolute()))})


def unhonoured(service: Service, why_not: Mapping[str, str]) -> Iterator[str]:
    """A note for each field of the spec that is set and not used."""
    yield from honoured.notes(service.gang(("python",) if service.run is None else None), ENGINE, why_not)


def _notes(service: Service, here: bool) -> Iterator[str]:
    yield from unhonoured(service, WHY_NOT)
    if not here:
        yield "Ray's hosts need what the ranks import (allranks[serve,ray]) and the model at the same path"
    if service.api_key is not None:
        where = f"variable {KEY_VARIABLE} of Ray's hosts"
        yield f"with 'serve deploy' the key is {where}; 'allranks serve' hands it over itself"
