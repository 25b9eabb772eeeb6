"""YAML text as a tree that knows where everything stands.

The tree is built from the parser's events, so that anchors, tags, depth and size are judged before anything is
constructed. Scalars follow YAML 1.2's core schema: ``yes``, ``no`` and ``on`` are text.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from allranks.spec.scalar import UNPRINTABLE, scalar, shown

DEEPEST = 32
MOST_VALUES = 10_000
# The parser's time grows with the square of some lines (one of exclamation marks).
LONGEST_LINE = 262_144

INIT = "'allranks init' writes a starter"
EMPTY = f"the file is empty; {INIT}"
NO_ANCHORS = "a spec has none: write the value out"
NOT_YAML = "this is not YAML: "
# What the parser says, and what a person needs to hear.
SYNTAX = {
    "found unexpected end of stream": "this quote is never closed",
    "<stream end>": "the file ends inside '[' or '{'; close it",
    "expected ',' or": "expected ',' or the closing bracket here",
    "mapping values are not allowed here": "a ':' is not allowed here; quote text that holds ': '",
    "that cannot start any token": "text cannot begin with this character; quote it",
    "expected <block end>": "this does not go on from the lines above; check indentation and quotes",
    "could not find expected ':'": "expected 'name: value' here; the ':' is missing",
}


@dataclass(frozen=True, order=True)
class Position:
    """A place in the text, both counted from 1."""

    line: int
    column: int


class Problem(Exception):
    """One thing that is wrong, and where."""

    def __init__(self, position: Position, message: str) -> None:
        super().__init__(message)
        self.position = position
        self.message = message


@dataclass(frozen=True)
class Node:
    """A value and its place. ``value`` is a scalar, a list of nodes or a mapping of text to nodes."""

    position: Position
    value: Any
    text: str = ""
    """A scalar as it stands in the file."""
    keys: dict[str, Position] = field(default_factory=dict)

    def plain(self, as_text: Container[int] = ()) -> Any:
        """Drop the places; nodes whose id is in ``as_text`` become the text that stands in the file."""
        if isinstance(self.value, dict):
            return {key: node.plain(as_text) for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain(as_text) for node in self.value]
        return self.text if id(self) in as_text else self.value


def read(text: str) -> tuple[Node | None, list[Problem]]:
    """Give the document's root, or None where the text is not one YAML document, and the problems found."""
    reader = Reader(text)
    try:
        refuse_unfit(text)
        return reader.document(), reader.problems
    except Problem as problem:
        return None, [*reader.problems, problem]


def refuse_unfit(text: str, above: int = 0) -> None:
    """Refuse what the parser is slow at, or lets through. ``above``: lines of the file before this text."""
    for number, line in enumerate(text.split("\n"), start=above + 1):
        if len(line) > LONGEST_LINE:
            raise Problem(Position(number, LONGEST_LINE + 1), f"line too long; allowed are {LONGEST_LINE:,} characters")
        if line.startswith("%"):
            raise Problem(Position(number, 1), "a line cannot begin with '%'; a spec has no YAML directives")
        if found := UNPRINTABLE.search(line):
            advice = "write it in double quotes as an escape, or remove it"
            raise Problem(Position(number, found.start() + 1), f"found the character U+{ord(found[0]):04X}; {advice}")


class Reader:
    """Builds the tree of one document, a spec's. ``above``: lines of the file before this text."""

    what = "a spec"
    deepest = DEEPEST
    most_values = MOST_VALUES

    def __init__(self, text: str, above: int = 0) -> None:
        self.text, self.above = text, above
        self.problems: list[Problem] = []
        self.count = 0
        self.at = Position(above + 1, 1)
        self.events = self._events()

    def document(self) -> Node:
        """Give the root. Raises Problem; lesser problems are left in ``problems``."""
        next(self.events)  # the stream's start
        if isinstance(next(self.events), StreamEndEvent):
            raise Problem(Position(self.above + 1, 1), EMPTY)
        root = self._node(next(self.events), 0)
        next(self.events)  # the document's end
        after = next(self.events)
        if isinstance(after, DocumentStartEvent):
            raise Problem(self._position(after), "a second document starts here; a file holds one")
        return root

    def _events(self) -> Iterator[Event]:
        parser = YAML(typ="safe", pure=True).parse(self.text)
        while True:
            try:
                event = next(parser, None)
            except MarkedYAMLError as error:
                raise self._syntax(error) from error
            except (YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # The parser lets its own slips out, such as an escape beyond Unicode; the place is the last one known.
                raise Problem(self.at, f"{NOT_YAML}{error}") from error
            if event is None:
                return
            self.at = self._position(event)
            yield event

    def _syntax(self, error: MarkedYAMLError) -> Problem:
        position = self._place(error.problem_mark or error.context_mark)
        line = self.text.split("\n")[position.line - 1 - self.above]
        blank = line[: len(line) - len(line.lstrip())]
        if "\t" in blank or line[position.column - 1 : position.column] == "\t":
            return Problem(position, "found a tab; YAML is indented with spaces only")
        words = " ".join(str(error.problem or error.context).split())
        if words == "found unexpected end of stream" and error.context_mark:
            position = self._place(error.context_mark)
        return Problem(position, next((ours for theirs, ours in SYNTAX.items() if theirs in words), NOT_YAML + words))

    def _node(self, event: Event, depth: int) -> Node:
        position = self._position(event)
        self._count(1, depth, position)
        self._refuse_extras(event, position)
        if isinstance(event, ScalarEvent):
            text = self._text(event)
            return Node(position, scalar(text), text) if event.implicit[0] else Node(position, text)
        if isinstance(event, MappingStartEvent):
            return self._mapping(position, depth)
        return self._sequence(position, depth)

    def _count(self, values: int, depth: int, position: Position) -> None:
        self.count += values
        if self.count > self.most_values:
            raise Problem(position, f"too many values; {self.what} has at most {self.most_values:,}")
        if depth > self.deepest:
            raise Problem(position, f"nested too deep; {self.what} has at most {self.deepest} levels")

    def _refuse_extras(self, event: Event, position: Position) -> None:
        if isinstance(event, AliasEvent):
            raise Problem(position, f"found the alias {shown('*', event.anchor)}; {NO_ANCHORS}")
        if isinstance(event, NodeEvent) and event.anchor:
            raise Problem(position, f"found the anchor {shown('&', event.anchor)}; {NO_ANCHORS}")
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag:
            raise Problem(position, f"found the tag {shown(event.tag)}; a spec has none: quote what must be text")

    def _sequence(self, position: Position, depth: int) -> Node:
        items = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return Node(position, items)

    def _mapping(self, position: Position, depth: int) -> Node:
        values: dict[str, Node] = {}
        keys: dict[str, Position] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key, place = self._key(event)
            value = self._node(next(self.events), depth + 1)
            if key in keys:
                self.problems.append(Problem(place, f"{shown(key)} is given twice, first in line {keys[key].line}"))
                continue
            values[key], keys[key] = value, place
        return Node(position, values, keys=keys)

    def _key(self, event: Event) -> tuple[str, Position]:
        place = self._position(event)
        self._refuse_extras(event, place)
        if not isinstance(event, ScalarEvent):
            raise Problem(place, "a field's name is text, not a list or mapping")
        if event.value == "<<" and event.implicit[0]:
            raise Problem(place, "found the merge key '<<'; a spec has none: write the values out")
        return self._text(event), place

    def _text(self, event: ScalarEvent) -> str:
        """Join the surrogate pairs that JSON's escapes make of one character; alone, they are none."""
        try:
            return str(event.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise Problem(self._position(event), "found half of a surrogate pair; no text holds that") from error

    def _position(self, event: Event) -> Position:
        return self._place(event.start_mark)

    def _place(self, mark: Any) -> Position:
        return Position(self.above + mark.line + 1, mark.column + 1)
