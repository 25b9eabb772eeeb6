"""A RayService for KubeRay: a head without ranks, a worker pod for each node of each gang, and the Serve config.

Seen on KubeRay 1.5.0. A worker is ready, and gets requests, by Serve's HTTP port on it; that is why the application has
``Presence`` on every host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.engines.engine import Plan
from allranks.engines.kubernetes import client as api
from allranks.engines.kubernetes import pod, render
from allranks.engines.kubernetes.admission import Admission
from allranks.engines.kubernetes.cluster import Cluster
from allranks.engines.kubernetes.manifest import Explained, without_nothing
from allranks.engines.ray.plan import ENGINE, NODE, SERVE_ENV, WHY_NOT, config, taken
from allranks.errors import SpecError
from allranks.spec.service import KEY_VARIABLE

if TYPE_CHECKING:
    from allranks.spec.job import Job
    from allranks.spec.service import Service

VERSION = "2.60.0"
"""Of Ray, in the image; KubeRay only asks it for its features."""
HEAD = {"cpu": "1", "memory": "2Gi"}
"""What the head's pod requests: Ray's own processes, Serve's controller, the door."""
PODS = ("pod", "container", "image", "env_from", "volumes", "resources.shm", "network.annotations")
OURS = ("engines.ray.redis", "engines.ray.redis_password", "engines.ray.upgrade")
PODS_OWN = {
    "schedule.queue": "label the RayService for it by engines.ray.manifest",
    "schedule.gang": "a gang waits for its placement group, not for its pods",
    "engines.ray.address": "the RayService is a Ray cluster of its own",
    "failure.force_delete": "nobody deletes pods here but KubeRay",
}


def plan(service: Service, folder: Path) -> Plan:
    """Render the service. Raises SpecError."""
    from allranks.spec.write import documents, dump

    key = service.api_key
    if key is not None and not key.secret:
        raise SpecError("api_key: a RayService takes it from a Secret; set api_key.secret: NAME/KEY")
    job = service.gang(("python",) if service.run is None else None)
    namespace = render.namespace_of(job, _cluster())
    serve = config(service, folder, here=False)
    spec = without_nothing(
        {
            "serveConfigV2": documents([serve]),
            "upgradeStrategy": {"type": service.engines.ray.upgrade},
            "rayClusterConfig": _ray_cluster(service, job, serve),
        },
        upgradeStrategy="engines.ray.upgrade",
    )
    main = render.main_object(job, ENGINE, Admission(), namespace, "ray.io/v1", "RayService", spec)
    why_not = {path: why for path, why in WHY_NOT.items() if path not in (*PODS, *OURS, "schedule")} | PODS_OWN
    whole = job.model_copy(update={"nodes": service.nodes * service.replicas})
    made = render.plan(whole, ENGINE, [main], why_not=why_not, notes=_notes(service))
    port, route = serve["http_options"]["port"], service.engines.ray.route.rstrip("/")
    address = f"http://{service.name}-serve-svc.{namespace}:{port}{route} (inside the cluster)"
    return Plan(made.name, ENGINE, made.documents, made.notes, dump(service), address)


def _cluster() -> Cluster:
    return Cluster() if api.why_not() else Cluster(namespace=api.connect().namespace)


def _ray_cluster(service: Service, job: Job, serve: dict[str, Any]) -> Explained:
    options = service.engines.ray
    port = {"name": "serve", "containerPort": serve["http_options"]["port"]}
    redis = {"redisAddress": options.redis, "redisPassword": _from_secret(options.redis_password)}
    if options.redis_password and not options.redis:
        raise SpecError("engines.ray.redis_password: it is for engines.ray.redis, which is not set")
    return without_nothing(
        {
            "rayVersion": VERSION,
            "gcsFaultToleranceOptions": without_nothing(redis),
            "headGroupSpec": _head(service, job, port),
            "workerGroupSpecs": [_workers(service, job, serve, port)],
        },
        gcsFaultToleranceOptions="engines.ray.redis: gangs outlive the head",
    )


def _head(service: Service, job: Job, port: dict[str, Any]) -> dict[str, Any]:
    small = job.model_copy(update={"resources": type(job.resources)()})
    template = _pods(service, small, "ray-head")
    (container,) = template["spec"]["containers"]
    container["resources"] = {"requests": dict(HEAD), "limits": {"memory": HEAD["memory"]}}
    named = {"gcs-server": 6379, "dashboard": 8265, "client": 10001}
    container["ports"] = [*({"name": name, "containerPort": number} for name, number in named.items()), port]
    params = Explained({"num-cpus": "0"}, **{"num-cpus": "no rank is placed on the head"})
    return {"rayStartParams": params, "template": template}


def _workers(service: Service, job: Job, serve: dict[str, Any], port: dict[str, Any]) -> Explained:
    gang = serve["applications"][0]["args"]["gang"]
    count = service.nodes * service.replicas
    template = _pods(service, job, "ray-worker")
    template["spec"]["containers"][0]["ports"] = [port]
    cpus = math.ceil(taken(gang, service)["CPU"]) + 1
    return Explained(
        {
            "groupName": "nodes",
            "replicas": count,
            "minReplicas": count,
            "maxReplicas": count,
            "rayStartParams": Explained(
                {"num-cpus": str(cpus), "resources": json.dumps(json.dumps({NODE: 1}))},
                **{
                    "num-cpus": "of one node, and the coordinator",
                    "resources": "a pod is one node, whatever would fit",
                },
            ),
            "template": template,
        },
        replicas="nodes x replicas: a pod for each node of each gang",
    )


def _pods(service: Service, job: Job, container: str) -> dict[str, Any]:
    """Pods whose processes are Ray's: KubeRay writes their command; the ranks inherit their environment."""
    key = service.api_key.secret if service.api_key else None
    env = [{"name": name, "value": value} for name, value in job.env.items()]
    env += [{"name": name, "value": value} for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **SERVE_ENV}.items()]
    if key:
        env.append({"name": KEY_VARIABLE, **_from_secret(key)})
    return pod.template(job, ENGINE, Admission(), container=container, command=(), env=env, agent=False)


def _from_secret(named: str | None) -> dict[str, Any]:
    if not named:
        return {}
    name, slash, key = named.partition("/")
    if not slash:
        raise SpecError(f"{named}: allowed is NAME/KEY of a Secret")
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}


def _notes(service: Service) -> Iterator[str]:
    options = service.engines.ray
    yield (
        "image: it needs bash and wget (KubeRay's probes), Ray "
        f"{VERSION} and what the ranks import: pip install 'allranks[serve,ray]'"
    )
    if options.upgrade == "NewCluster":
        yield (
            "upgrade: a changed serveConfigV2 is applied in place, the old gang ending before the new one starts; any "
            "other change makes a second cluster beside the first and moves to it once it serves, for which the "
            "hosts (and GPUs) are needed twice; engines.ray.upgrade: None never does that"
        )
    if not options.redis:
        yield "without engines.ray.redis the loss of the head's pod is the loss of all gangs; KubeRay makes all anew"
