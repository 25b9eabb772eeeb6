"""Manifests as values: mappings that know why some of their fields are as they are, and how one is merged into another.

``merge`` is the language of ``engines.<engine>.manifest``, ``pod`` and ``container``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("name", "mountPath", "key")
"""By the first of these that tells all entries of two lists apart they are matched with each other."""


class Explained(dict[str, Any]):
    """A mapping with comments on some of its fields: ``why`` maps a key to one line. To all else it is a dict."""

    def __init__(self, fields: Mapping[str, Any] = {}, /, **why: str) -> None:
        super().__init__(fields)
        self.why = why


def without_nothing(fields: Mapping[str, Any], /, **why: str) -> Explained:
    """Leave out what is None, or an empty mapping, list or text: nobody writes that down."""
    kept = {key: value for key, value in fields.items() if value is not None and value not in ({}, [], "")}
    return Explained(kept, **{key: line for key, line in why.items() if key in kept})


def merge(base: Any, patch: Any) -> Any:
    """Put ``patch`` over ``base``; both stay as they are.

    Mappings are merged key by key, and null takes a key away:

    >>> merge({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 9, "d": None}, "e": 4})
    {'a': 1, 'b': {'c': 9}, 'e': 4}

    Lists whose entries all have a ``name`` (else a ``mountPath``, else a ``key``) are merged entry by entry; new ones
    come last:

    >>> merge([{"name": "a", "x": 1}, {"name": "b"}], [{"name": "a", "y": 2}, {"name": "c"}])
    [{'name': 'a', 'x': 1, 'y': 2}, {'name': 'b'}, {'name': 'c'}]

    By the first of the three that is no entry's twice, so that one volume can be mounted in two places:

    >>> merge([{"name": "v", "mountPath": "/a"}], [{"name": "v", "mountPath": p} for p in ("/b", "/c")])
    [{'name': 'v', 'mountPath': '/a'}, {'name': 'v', 'mountPath': '/b'}, {'name': 'v', 'mountPath': '/c'}]

    Any other list, and anything of another type, takes the place of what was there:

    >>> merge({"args": ["x", "y"], "n": 1}, {"args": ["z"], "n": {"deep": True}})
    {'args': ['z'], 'n': {'deep': True}}

    A null that takes nothing away leaves nothing behind, at any depth:

    >>> merge({}, {"a": None, "b": {"c": None, "d": 1}})
    {'b': {'d': 1}}
    """
    if isinstance(patch, dict):
        return _merge_mappings(base if isinstance(base, dict) else {}, patch)
    if isinstance(base, list) and isinstance(patch, list):
        name = _name_of_entries(base, patch)
        return _merge_lists(base, patch, name) if name else patch
    return patch


def _merge_mappings(base: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(base.get(key), value)
    if not isinstance(base, Explained):
        return merged
    untouched = {key: line for key, line in base.why.items() if key in merged and key not in patch}
    return Explained(merged, **untouched)


def _name_of_entries(base: list[Any], patch: list[Any]) -> str:
    entries = [*base, *patch]
    mappings = bool(base and patch) and all(isinstance(entry, dict) for entry in entries)
    had = [name for name in NAMES if mappings and all(name in entry for entry in entries)]
    return next((name for name in had if _tells_apart(base, name) and _tells_apart(patch, name)), (had or [""])[0])


def _tells_apart(entries: list[Any], name: str) -> bool:
    return len({str(entry[name]) for entry in entries}) == len(entries)


def _merge_lists(base: list[Any], patch: list[Any], name: str) -> list[Any]:
    merged = {str(entry[name]): entry for entry in base}
    for entry in patch:
        merged[str(entry[name])] = merge(merged.get(str(entry[name])), entry)
    return list(merged.values())
