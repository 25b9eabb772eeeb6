"""A gang is given to Run:ai: what its pods mount first, then the ``runai`` program's line, whose PyTorchJob is awaited.

Without a cluster to put the agent and its secret into there is no gang: a secret does not go into a command line.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allranks.engines.kubernetes import name
from allranks.engines.kubernetes import submit as objects
from allranks.engines.kubernetes.check import check_all
from allranks.engines.kubernetes.client import Client, Object
from allranks.engines.kubernetes.conditions import ending
from allranks.engines.kubernetes.kinds import PYTORCHJOB
from allranks.engines.kubernetes.refusals import Missing
from allranks.engines.runai import output, program
from allranks.errors import EngineError, NotFound

if TYPE_CHECKING:
    from allranks.engines.engine import Plan

MADE_WITHIN = 60.0
"""Seconds for Run:ai to make the PyTorchJob."""
POLL = 0.3


def submit(client: Client, plan: Plan) -> Object:
    """Start it; returns Run:ai's PyTorchJob. Raises EngineError, having left nothing, or saying what."""
    line = plan.documents[-1]
    namespace, argv = str(line["metadata"]["namespace"]), [str(word) for word in line["argv"]]
    program.must()
    _free_the_name(client, plan, namespace)
    made: list[Object] = []
    submitted = False
    try:
        files, *others = objects.in_order(plan)[:-1]
        made.append(objects.take(client, plan, files, namespace, made))
        for document in others:
            made.append(client.create(document, namespace))
        said = program.tell(argv[1:], program.SUBMITS_WITHIN)
        submitted = True
        output.begin(namespace, plan.name, said)
        main = _await_made(client, plan.name, namespace, said)
        objects.belong_to(client, [main], made, namespace)
    except BaseException as error:
        if submitted:
            _take_back(plan.name, project_of(argv), error)
        objects.undo(client, made, namespace, error)
        raise
    return main


def project_of(argv: list[str]) -> str:
    """The project of a line; empty for the program's current one."""
    return argv[argv.index("--project") + 1] if "--project" in argv else ""


def check(client: Client, plan: Plan) -> list[str]:
    """Have the API server judge what it is to hold; nobody judges the line before it is typed."""
    return [*check_all(client, objects.in_order(plan)[:-1]), "the line of runai is judged by Run:ai when it is typed"]


def _free_the_name(client: Client, plan: Plan, namespace: str) -> None:
    stand_in: dict[str, Any] = {
        **plan.documents[-1], "apiVersion": PYTORCHJOB.api_version, "kind": PYTORCHJOB.kind,
    }  # fmt: skip
    try:
        there = client.get(PYTORCHJOB, plan.name, namespace)
    except Missing:
        there = None
    if there is not None and ending(there):
        argv = [str(word) for word in plan.documents[-1]["argv"]]
        delete(plan.name, project_of(argv))
    name.free(client, replace(plan, documents=(*plan.documents[:-1], stand_in)), namespace)


def delete(name: str, project: str) -> None:
    """Have Run:ai delete the workload, which otherwise would make its PyTorchJob anew; one that is gone is fine."""
    with contextlib.suppress(NotFound):
        program.ask(program.DELETE, name, project)


def _await_made(client: Client, name: str, namespace: str, said: str) -> Object:
    until = time.monotonic() + MADE_WITHIN
    while time.monotonic() < until:
        try:
            return client.get(PYTORCHJOB, name, namespace)
        except Missing:
            time.sleep(POLL)
    raise EngineError(
        f"Run:ai has made no PyTorchJob {name} in namespace {namespace} within {MADE_WITHIN:.0f} s, so the workload is "
        "taken back; where the project's namespace has another name, set schedule.namespace\n"
        f"runai said: {' '.join(said.split())[:300]}"
    )


def _take_back(name: str, project: str, error: BaseException) -> None:
    try:
        delete(name, project)
    except EngineError as failed:
        error.args = (f"{error}; left behind: workload {name}, because {failed}", *error.args[1:])
