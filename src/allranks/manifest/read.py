"""A file of manifests as trees: several documents, lists, JSON, anchors and merge keys, as kubectl takes them.

Documents that hold no gang are not parsed: a bundle of several megabytes costs what its gangs cost.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from allranks.errors import SpecError
from allranks.manifest.field import Field
from allranks.spec.scalar import scalar, shown
from allranks.spec.tree import EMPTY, Node, Position, Problem, Reader, refuse_unfit
from allranks.spec.wording import nearest

SERVICE = "Service"
"""A spec of ours where it has no apiVersion, else Kubernetes' own, which holds no gang."""
GANGS = ("MPIJob", "PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime", "JobSet", "Job")
LARGEST_FILE = 16 * 1024 * 1024
# What an API server takes in one request; etcd takes less.
LARGEST_DOCUMENT = 3 * 1024 * 1024
MOST_VALUES = 100_000
# Of what seems to hold no gang, so many characters are parsed, to tell whether it is YAML at all: a second's work.
MOST_DOUBTED = 100_000
SEPARATOR = re.compile(r"^(?:---|\.\.\.)(?=[ \t]|$)", re.MULTILINE)
DIRECTIVES = re.compile(r"\A(?:[ \t]*(?:#.*)?\n)*(?:%.*\n?)+")
KIND = re.compile(
    r"""^(?:[ \t-]*|[^#\n]*[{,][ \t]*)["']?kind["']?[ \t]*:[ \t]*(?:[!&]\S+[ \t]+)*["']?([\w.-]+)""", re.MULTILINE
)
TEMPLATE = re.compile(r"\{\{-?\s*(?:[.$\"(]|/\*|(?:if|range|with|include|template|define|end|else|toYaml|block)\b)|\{%")
HELM = re.compile(r"\{\{-?[^}\n]{0,200}\.(?:Values|Release|Chart|Capabilities)\b")
STANDARD = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Unread:
    """A document that could not be read."""

    position: Position
    why: str

    def __str__(self) -> str:
        """``12:3: why``."""
        return f"{self.position.line}:{self.position.column}: {self.why}"


@dataclass(frozen=True)
class Contents:
    """What a file holds: the documents that may be gangs, those that could not be read, the kinds of all others."""

    source: str
    documents: list[Field] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)

    @property
    def nothing(self) -> str:
        """Say what there is instead of a gang: broken YAML, which may have hidden one, before all else."""
        if broken := self._broken():
            return f"{self.source}:{broken}"
        found = ", ".join(dict.fromkeys(self.others[:20])) or "no 'kind:' at all"
        near = [
            f"; did you mean {meant!r}?" for kind in self.others if (meant := nearest(kind, GANGS)) and meant != kind
        ]
        return f"{self.source}: no gang in it, found {found}; known are {', '.join(GANGS)}{near[0] if near else ''}"

    def _broken(self) -> Unread | None:
        left = MOST_DOUBTED
        for chunk, above in self.skipped:
            if (left := left - len(chunk)) < 0 or not chunk.strip():
                continue
            try:
                _reader(chunk, above, MOST_VALUES).document()
            except Problem as problem:
                if problem.message != EMPTY:
                    return _told(problem, chunk)
        return None


def text_of(path: str) -> str:
    """Read a file, ``-`` being standard input. Raises SpecError."""
    source = "<stdin>" if path == "-" else path
    try:
        if path == "-":
            raw = sys.stdin.buffer.read(LARGEST_FILE + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise SpecError(f"{source}: {getattr(error, 'strerror', None) or error}") from error
    if len(raw) > LARGEST_FILE:
        raise SpecError(f"{source}: larger than 16 MiB; give the documents that matter alone")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{source}:{line}: this is not UTF-8 text; save the file as UTF-8") from error


def read(text: str, source: str) -> Contents:
    """Split a file into its documents and read those that may hold a gang; never raises."""
    contents, left = Contents(source), MOST_VALUES
    for chunk, above in _chunks(text):
        kinds = KIND.findall(chunk)
        if not set(kinds) & set(GANGS) and (SERVICE not in kinds or "apiVersion" in chunk):
            contents.others.extend(kinds[:1])
            contents.skipped.append((chunk, above))
            continue
        try:
            reader = _reader(chunk, above, left)
            root = reader.document()
        except Problem as problem:
            contents.unread.append(_told(problem, chunk))
            continue
        left -= reader.count
        contents.unread.extend(_told(problem, chunk) for problem in reader.problems)
        for document in _flat(Field(root)):
            ours = document["kind"].text == SERVICE and not document["apiVersion"]
            if ours or document["kind"].text in GANGS:
                contents.documents.append(document)
            else:
                contents.others.append(document["kind"].text)
    return contents


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """The documents, and how many lines stand above each."""
    starts = [0, *(found.start() for found in SEPARATOR.finditer(text))]
    above = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end], above
        above += text.count("\n", start, end)


def _reader(chunk: str, above: int, left: int) -> ManifestReader:
    if left <= 0:
        raise Problem(Position(above + 1, 1), f"more than {MOST_VALUES:,} values in one file; give fewer gangs at once")
    if len(chunk) > LARGEST_DOCUMENT:
        raise Problem(Position(above + 1, 1), "this document is larger than 3 MiB; no API server takes it")
    chunk = DIRECTIVES.sub(lambda found: "\n" * found[0].count("\n"), chunk)
    if chunk.startswith("..."):
        chunk = f"   {chunk[3:]}"
    if chunk.lstrip()[:1] in ("{", "["):
        chunk = chunk.replace("\t", " ")  # JSON may be indented with tabs
    refuse_unfit(chunk, above)
    if found := HELM.search(chunk):  # in quotes it is YAML, and means nothing
        start = chunk.rfind("\n", 0, found.start()) + 1
        raise Problem(Position(above + chunk.count("\n", 0, start) + 1, found.start() - start + 1), "a template")
    return ManifestReader(chunk, above)


def _told(problem: Problem, chunk: str) -> Unread:
    if found := TEMPLATE.search(chunk):
        what = shown(chunk[found.start() :].split("\n")[0])
        way_out = "render it first: helm template . | allranks lint -"
        return Unread(problem.position, f"this is a template, not YAML: found {what}; {way_out}")
    return Unread(problem.position, problem.message)


def _flat(document: Field) -> Iterator[Field]:
    """A list's items, or the document itself."""
    if document["kind"].text == "List" and document["items"].is_list:
        for item in document["items"].items:
            yield from _flat(Field(item.node))
    else:
        yield document


class ManifestReader(Reader):
    """A document as Kubernetes' tools read it: aliases and merge keys are followed, YAML's own tags are known."""

    what = "a manifest"
    deepest = 64
    most_values = 40_000

    def __init__(self, text: str, above: int = 0) -> None:
        super().__init__(text, above)
        self.anchors: dict[str, tuple[Node, int, int]] = {}
        self.height = 0

    def _node(self, event: Event, depth: int) -> Node:
        position = self._position(event)
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        before, outer, self.height = self.count, self.height, 0
        self._count(1, depth, position)
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, position)
        elif isinstance(event, MappingStartEvent):
            node = self._mapping(position, depth)
        else:
            node = self._sequence(position, depth)
        if isinstance(event, CollectionStartEvent) and event.tag and not event.tag.startswith(STANDARD):
            raise Problem(position, f"found the tag {shown(event.tag)}; Kubernetes knows none")
        if isinstance(event, NodeEvent) and event.anchor:
            self.anchors[event.anchor] = (node, self.count - before, self.height)
        self.height = max(outer, self.height + 1)
        return node

    def _alias(self, event: AliasEvent, depth: int) -> Node:
        """The node that was named, counted as if it were written out here: an alias of aliases grows quickly."""
        position = self._position(event)
        if event.anchor not in self.anchors:
            raise Problem(position, f"the alias {shown('*', event.anchor)} has no anchor above it")
        node, values, height = self.anchors[event.anchor]
        self._count(values, depth + height, position)
        self.height = max(self.height, height + 1)
        return node

    def _scalar(self, event: ScalarEvent, position: Position) -> Node:
        text, tag = self._text(event), str(event.tag or "").removeprefix(STANDARD)
        if tag in ("int", "float", "bool", "null") or (event.implicit[0] and not tag):
            return Node(position, scalar(text), text)
        if tag not in ("", "str", "!"):
            raise Problem(position, f"found the tag {shown(event.tag)}; Kubernetes knows none")
        return Node(position, text, text)

    def _mapping(self, position: Position, depth: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Position] = {}
        merged: list[Node] = []
        while not isinstance(event := next(self.events), MappingEndEvent):
            place = self._position(event)
            if not isinstance(event, ScalarEvent):
                raise Problem(place, "a field's name is text, not a list, mapping or alias")
            key = self._text(event)
            value = self._node(next(self.events), depth + 1)
            if key == "<<" and event.implicit[0]:
                merged += value.value if isinstance(value.value, list) else [value]
            elif key in keys:
                self.problems.append(Problem(place, f"{shown(key)} is given twice, first in line {keys[key].line}"))
            else:
                values[key], keys[key] = value, place
        for node in merged:
            if not isinstance(node.value, dict):
                raise Problem(position, "the merge key '<<' takes a mapping, or a list of them")
            values = {**node.value, **values}
            keys = {**node.keys, **keys}
        return Node(position, values, keys=keys)
