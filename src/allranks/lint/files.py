"""A file in, its findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from allranks.errors import SpecError
from allranks.lint import agree, fields, hosts, mpi, network, ours, pods, ranks, restarts, trainer
from allranks.lint.hosts import HostSubject
from allranks.lint.ours import SpecSubject
from allranks.lint.rule import Rule, Subject
from allranks.manifest.field import Field
from allranks.manifest.hostfile import hosts as hosts_in
from allranks.manifest.hostfile import is_hostfile
from allranks.manifest.read import read
from allranks.spec.load import KINDS, parse
from allranks.spec.tree import read as read_spec

NO_CRD: Mapping[str, Any] = {}
RULES: tuple[Rule, ...] = (
    *fields.RULES, *mpi.RULES, *hosts.RULES, *pods.RULES, *ranks.RULES, *agree.RULES, *restarts.RULES,
    *network.RULES, *trainer.RULES, *ours.RULES,
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One mistake in a file, as it is told."""

    file: str
    line: int
    column: int
    rule: str
    severity: str
    what: str
    why: str
    fix: str


@dataclass
class Linted:
    """What a file gave: findings, what could not be read (whole lines), and what it holds when it holds no gang."""

    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    gangs: int = 0
    nothing: str = ""


def lint(text: str, source: str, trainer_version: tuple[int, ...] = (), schemas: Mapping[str, Any] = NO_CRD) -> Linted:
    """Lint a file's text; never raises."""
    if is_hostfile(text):
        subject = HostSubject(source, Field(None), hosts=tuple(hosts_in(text)))
        return Linted(_findings(subject, "hostfile"), gangs=1)
    contents = read(text, source)
    linted = Linted(unread=[f"{source}:{one}" for one in contents.unread])
    for root in contents.documents:
        if root["kind"].text in KINDS and not root["apiVersion"]:
            _lint_spec(linted, text, source)
            continue
        linted.gangs += 1
        about = Subject(source, root, contents.documents, trainer=trainer_version, schemas=schemas)
        linted.findings += _findings(about, about.kind)
    linted.nothing = "" if linted.gangs or linted.unread else contents.nothing
    return linted


def _lint_spec(linted: Linted, text: str, source: str) -> None:
    """A spec of ours: first whether it loads."""
    try:
        spec = parse(text, source)
    except SpecError as error:
        linted.unread += str(error).splitlines()
        return
    root, _ = read_spec(text)
    linted.gangs += 1
    linted.findings += _findings(SpecSubject(source, Field(root), loaded=spec), "spec")


def _findings(subject: Subject, kind: str) -> list[Finding]:
    found = chain.from_iterable(_told(subject, rule) for rule in RULES if kind in rule.kinds)
    # Templates that share an anchor have each mistake twice, at one place.
    return sorted(dict.fromkeys(found), key=lambda one: (one.line, one.column, one.rule))


def _told(subject: Subject, rule: Rule) -> Iterator[Finding]:
    for found in rule.check(subject):
        place = found.at.position
        yield Finding(
            subject.source, place.line, place.column, rule.name, rule.severity, found.what, rule.why, found.fix
        )


def crd_shapes(text: str, source: str) -> dict[str, Any]:
    """The shapes in a file of CustomResourceDefinitions. Raises SpecError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    found: dict[str, Any] = {}
    try:
        for document in YAML(typ="safe").load_all(text):
            if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
                found |= fields.shapes(document)
    except (YAMLError, LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SpecError(f"{source}: no CustomResourceDefinition can be read from this: {error}") from error
    if not found:
        raise SpecError(f"{source}: no CustomResourceDefinition in it; print one with: kubectl get crd NAME -o yaml")
    return found
