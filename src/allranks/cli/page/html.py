"""Elements of a page as values: every string is escaped, unless it is markup already."""

from __future__ import annotations

from html import escape

from allranks.cli.plain import plain

_VOID = ("meta", "br", "rect", "line", "polyline", "polygon", "circle")


class Html(str):
    """Markup, ready to be written."""

    __slots__ = ()


Content = str | None
"""Of a string the text, of Html the markup, of None nothing."""


def el(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Html:
    """One element. ``class_`` is class, ``stroke_width`` stroke-width; True is an attribute without a value."""
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    if name in _VOID:
        return Html(f"<{name}{written}>" if name in ("meta", "br") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*content)}</{name}>")


def join(*content: Content) -> Html:
    """Several in a row."""
    return Html("".join(one if isinstance(one, Html) else text(one) for one in content if one is not None))


def text(value: str, most: int = 2000) -> Html:
    """Text of anybody's, escaped and bounded."""
    return Html(escape(plain(value, most)))


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = f"{value:g}" if isinstance(value, float) else plain(str(value))
    return f' {name}="{escape(shown)}"'


class Budget:
    """How much of the page a part may take, in bytes."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, part: Html) -> Html | None:
        """The part, or None when there is no room for it."""
        size = len(part.encode("utf-8", "replace"))
        if size > self._left:
            return None
        self._left -= size
        return part
