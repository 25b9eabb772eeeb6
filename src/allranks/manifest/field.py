"""One place in a manifest, whether something stands there or not: what is missing or wrong needs no special care."""

from __future__ import annotations

from collections.abc import Iterator

from allranks.spec.tree import Node, Position
from allranks.spec.units import Quantity


class Field:
    """A value and its path; ``field["a"]["b"]`` always works, and is false where nothing stands."""

    __slots__ = ("node", "path", "position")

    def __init__(self, node: Node | None, path: str = "", position: Position | None = None) -> None:
        self.node, self.path = node, path
        self.position = position or (node.position if node else Position(1, 1))

    def __getitem__(self, key: str | int) -> Field:
        path = f"{self.path}[{key}]" if isinstance(key, int) else f"{self.path}.{key}".removeprefix(".")
        value = self.node.value if self.node else None
        if isinstance(key, str) and isinstance(value, dict) and key in value and self.node:
            return Field(value[key], path, self.node.keys.get(key))
        if isinstance(key, int) and isinstance(value, list) and key < len(value):
            return Field(value[key], path)
        return Field(None, path, self.position)

    def at(self, *keys: str | int) -> Field:
        """Several steps at once."""
        field = self
        for key in keys:
            field = field[key]
        return field

    def __bool__(self) -> bool:
        """Whether something other than null stands here."""
        return self.node is not None and self.node.value is not None

    @property
    def is_mapping(self) -> bool:
        """Whether this has fields."""
        return self.node is not None and isinstance(self.node.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether this has items."""
        return self.node is not None and isinstance(self.node.value, list)

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of a mapping; of anything else none."""
        return {key: self[key] for key in self.node.value} if self.node and self.is_mapping else {}

    @property
    def items(self) -> list[Field]:
        """The items of a list; of anything else none."""
        return [self[index] for index in range(len(self.node.value))] if self.node and self.is_list else []

    @property
    def is_scalar(self) -> bool:
        """Whether this is neither a mapping nor a list, nor nothing."""
        return bool(self) and not self.is_mapping and not self.is_list

    @property
    def is_text(self) -> bool:
        """Whether text stands here, not a bare number or true."""
        return self.node is not None and isinstance(self.node.value, str)

    @property
    def text(self) -> str:
        """A scalar as it stands in the file; nothing for all else."""
        if not self or self.node is None or isinstance(self.node.value, dict | list):
            return ""
        return self.node.text or str(self.node.value)

    @property
    def number(self) -> int | None:
        """A whole number, also in quotes."""
        text = self.text
        return int(text) if len(text) <= 9 and text.isascii() and text.removeprefix("-").isdigit() else None

    @property
    def quantity(self) -> Quantity | None:
        """An amount as Kubernetes writes it."""
        try:
            return Quantity.parse(self.text)
        except ValueError:
            return None

    @property
    def is_true(self) -> bool:
        """Whether this is the bare word true."""
        return self.node is not None and self.node.value is True

    def walk(self) -> Iterator[Field]:
        """This field and all below it, in the order of the file."""
        yield self
        for below in (*self.fields.values(), *self.items):
            yield from below.walk()
