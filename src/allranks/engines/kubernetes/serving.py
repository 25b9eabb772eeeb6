"""A service in a cluster: its gangs as any job's, and a Service of Kubernetes that leads to node 0 of each.

A node says itself whether it is ready (``node/ready.py``): one template serves all pods of a gang, so the probe is a
command that does. What is not ready gets no requests; the names by which nodes find each other are there before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allranks.engines.engine import Plan
from allranks.engines.kubernetes import delivery, exec, render
from allranks.engines.kubernetes.client import Client
from allranks.engines.kubernetes.kinds import POD
from allranks.engines.kubernetes.manifest import Explained, merge
from allranks.engines.kubernetes.pods import NodeOf, Pod
from allranks.engines.kubernetes.refusals import Refused
from allranks.errors import EngineError, SpecError

if TYPE_CHECKING:
    from allranks.spec.job import Job
    from allranks.spec.service import Service

LONGEST = 40
"""Characters of a run's name."""
EVERY, ANSWER_WAIT = 5, 5
"""Seconds between two questions whether a pod is ready, and for each answer."""
HAVE_THEM = "use an image with: pip install 'allranks[serve]' (Python 3.11 or newer)"


def name_of(service: str) -> str:
    """The name of its Service: a gang's own is taken by its nodes' names."""
    return f"{service}-http"


# The plan


def gangs(service: Service, *, from_the_start: bool) -> list[Job]:
    """The jobs that are the service's gangs, their containers with all that clients need. Raises SpecError.

    ``from_the_start``: a pod must be called ready before the gang is complete, or it never would be.
    """
    gang = _gang(service)
    _check(service, gang)
    own: dict[str, Any] = {
        "readinessProbe": _probe(service, from_the_start),
        "ports": [{"name": "http", "containerPort": service.port}],
    }
    if service.api_key and service.api_key.secret:
        from allranks.spec.service import KEY_VARIABLE

        name, _, key = service.api_key.secret.partition("/")
        own["env"] = [{"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}]
    one = gang.model_copy(update={"container": merge(own, gang.container)})
    if service.replicas == 1:
        return [one]
    return [one.model_copy(update={"name": f"{service.name}-{number}"}) for number in range(service.replicas)]


def _gang(service: Service) -> Job:
    """What is of this machine, a file or a variable, no container has."""
    if service.model is None:
        return service.gang()
    from allranks.serving.options import of_service, serving

    if service.api_key and not service.api_key.secret:
        raise SpecError("api_key: containers see neither this shell nor its files; write api_key: {secret: NAME/KEY}")
    where = "in a container allowed is an absolute path, in the image or on one of 'volumes'"
    if service.model.startswith((".", "~")):
        raise SpecError(f"model: found {service.model}; {where}, or a name on the hub")
    if service.chat_template and not service.chat_template.startswith("/"):
        raise SpecError(f"chat_template: found {service.chat_template}; {where}")
    return serving(service, of_service(service, None), "python3")


def _check(service: Service, gang: Job) -> None:
    if service.host in ("localhost", "::1") or (service.host or "").startswith("127."):
        raise SpecError(f"host: found {service.host}; in a container nobody could reach it; leave host out")
    longest = f"{service.name}-{service.replicas - 1}" if service.replicas > 1 else service.name
    if len(longest) > LONGEST:
        raise SpecError(f"name: its gangs would be named up to {longest}, longer than {LONGEST} characters; shorten it")
    if gang.engines.mpijob.start == "mpirun":
        raise SpecError(
            "engines.mpijob.start: mpirun is for jobs; a service's agents are started by its pods: leave it out"
        )


def _probe(service: Service, from_the_start: bool) -> Explained:
    agent, plan = f"{delivery.CODE}/{delivery.AGENT}", f"{delivery.CODE}/{delivery.PLAN}"
    words = ["python3", agent, "ready", plan, str(service.port), service.ready]
    return Explained(
        {
            "exec": {"command": [*words, *(["--from-the-start"] if from_the_start else [])]},
            "periodSeconds": EVERY, "timeoutSeconds": ANSWER_WAIT, "failureThreshold": 1,
        },
        exec=f"node 0 asks its server for {service.ready}, other nodes whether they have started ranks",
    )  # fmt: skip


def joined(service: Service, plans: Sequence[Plan], head: Mapping[str, str], namespace: str) -> Plan:
    """One plan of the plans of all gangs; ``head`` are the labels of node 0's pod."""
    from allranks.serving.check import NEEDS
    from allranks.spec.write import dump

    ours = service.model is not None
    told = {"needs": ["allranks", *NEEDS], "to_have_them": HAVE_THEM} if ours else {}
    marked = [[_marked(_told(document, told), service.name) for document in plan.documents] for plan in plans]
    lead = _service(service, plans[0].engine, head, namespace)
    if len(plans) == 1:
        lead["metadata"]["labels"] = {delivery.RUN: service.name, **lead["metadata"]["labels"]}
        documents = [*marked[0][:-1], lead, marked[0][-1]]
    else:
        documents = [lead, *(document for one in marked for document in one)]
    notes = dict.fromkeys((*(note for plan in plans for note in plan.notes), *_notes(service, ours)))
    url = f"http://{name_of(service.name)}.{namespace}:{service.port} (inside the cluster)"
    return Plan(service.name, plans[0].engine, tuple(documents), tuple(notes), dump(service), url)


def _service(service: Service, engine: str, head: Mapping[str, str], namespace: str) -> dict[str, Any]:
    metadata = {
        "name": name_of(service.name), "namespace": namespace,
        "labels": {delivery.SERVICE: service.name, delivery.ENGINE: engine},
    }  # fmt: skip
    spec = Explained(
        {
            "selector": {delivery.SERVICE: service.name, **head},
            "ports": [{"name": "http", "port": service.port, "targetPort": service.port}],
        },
        selector="node 0 of each gang, while it is ready",
    )
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _told(document: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The agents' plan with further fields."""
    data = document.get("data") or {}
    if not more or document["kind"] != "ConfigMap" or delivery.PLAN not in data:
        return document
    plan = json.dumps({**json.loads(data[delivery.PLAN]), **more}, indent=1)
    return {**document, "data": {**data, delivery.PLAN: plan + "\n"}}


def _marked(value: Any, service: str) -> Any:
    """The same with the service's label wherever the run's labels are."""
    if isinstance(value, list):
        return [_marked(part, service) for part in value]
    if not isinstance(value, dict):
        return value
    made = {key: _marked(part, service) for key, part in value.items()}
    if delivery.RUN in made and delivery.ENGINE in made:
        made[delivery.SERVICE] = service
    return Explained(made, **value.why) if isinstance(value, Explained) else made


def _notes(service: Service, ours: bool) -> Iterator[str]:
    name = name_of(service.name)
    yield f"from outside the cluster: kubectl port-forward service/{name} {service.port}, or an Ingress of yours"
    if ours:
        yield f"image {service.image}: its python3 must have allranks[serve]; the agent looks before it starts any rank"
    if ours and service.api_key is None:
        yield f"api_key: none, so whoever reaches port {service.port} of {name} may ask"


# Once it is there


def apart(plan: Plan) -> tuple[list[dict[str, Any]], list[Plan]]:
    """What the gangs of a plan share, and a plan of each gang."""
    shared, by_run = list[dict[str, Any]](), dict[str, list[dict[str, Any]]]()
    for document in plan.documents:
        run = (document["metadata"].get("labels") or {}).get(delivery.RUN)
        (by_run.setdefault(run, []) if run else shared).append(document)
    return shared, [replace(plan, name=run, documents=tuple(documents)) for run, documents in by_run.items()]


def answers(client: Client, plan: Plan, node_of: NodeOf) -> bool:
    """Whether node 0 of each gang is ready, by its pod's condition and by its own word at this moment."""
    found = client.list(
        POD, str(render.main_document(plan)["metadata"]["namespace"]), labels=f"{delivery.SERVICE}={plan.name}"
    )
    heads = [pod for raw in found if node_of(raw) == 0 and (pod := Pod(0, raw)).is_running and not pod.is_going]
    _, each = apart(plan)
    ready = [pod for pod in heads if pod.condition("Ready").get("status") == "True"]
    return len(ready) == len(each) and all(_says_so(client, pod) for pod in ready)


def _says_so(client: Client, pod: Pod) -> bool:
    """A condition may be seconds old, and of a pod that is ready from the start."""
    probe = pod.ranks.get("readinessProbe") or {}
    command = (probe.get("exec") or {}).get("command") or []
    if "ready" not in command:
        return True  # a probe of the user's own
    now = [word for word in command if word != "--from-the-start"]
    try:
        return exec.run(client, pod.name, pod.container, now, pod.namespace).code == 0
    except Refused as refused:
        return refused.is_forbidden  # whoever may not ask has the condition alone
    except EngineError:
        return False  # its container has just ended
