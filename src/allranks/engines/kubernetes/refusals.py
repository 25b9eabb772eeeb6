"""What an API server answers when it does not do what was asked, in words: what, found, and the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from allranks.engines.kubernetes.kinds import Kind
from allranks.errors import EngineError, Unreachable

__all__ = ["Missing", "NoRight", "NotInstalled", "Refused", "Unreachable", "not_installed", "refusal", "role_line"]

VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Refused(EngineError):
    """The API server said no. ``code`` is its HTTP status, ``why`` its own short reason (AlreadyExists, Forbidden)."""

    def __init__(self, message: str, code: int, why: str = "") -> None:
        super().__init__(message)
        self.code, self.why = code, why

    @property
    def is_forbidden(self) -> bool:
        """Whether it is whoever asked that may not, or the cluster's own rules that forbid it to all."""
        return self.code == 403


class NoRight(Refused):
    """Whoever asked may not."""


class Missing(Refused):
    """There is no such object."""


class NotInstalled(Refused):
    """The cluster does not know this kind of object."""


def refusal(code: int, body: bytes, verb: str, kind: Kind, namespace: str, name: str, context: str) -> Refused:
    """The error for an answer of 400 and above. ``verb`` is a Role's: get, list, create, patch, delete."""
    said = _status(body)
    why, message = str(said.get("reason", "")), _short(str(said.get("message", "")) or body.decode(errors="replace"))
    what = f"{kind.kind} {name}".strip()
    if code == 401:
        return Refused(f"the cluster does not accept the credentials of context {context} (401 {message}); they may "
                       "have expired: log in anew, as for kubectl", code, why)  # fmt: skip
    if code == 404:
        return _missing(said, what, kind, namespace, code)
    if "exceeded quota" in message:
        return Refused(f"{what}: the quota of namespace {namespace} does not allow it: {message}", code, why)
    if _is_of_webhook(message) or (code == 403 and "cannot" not in message):
        return Refused(f"{what} was refused by the cluster's own rules: {message}", code, why)
    if code == 403:
        return NoRight(f"no right to {verb} {kind.title} in namespace {namespace} (context {context}): {message}\n"
                       f"Ask for a Role with {role_line(kind, verb)}", code, why)  # fmt: skip
    if why == "AlreadyExists":
        return Refused(f"{what} exists already in namespace {namespace}", code, why)
    if unknown := re.findall(r'unknown field "([^"]+)"', message):
        return Refused(f"{what}: the {kind.kind} that is installed has no field {', '.join(unknown)}; leave it out, or "
                       f"upgrade {kind.operator or 'the cluster'}", code, why)  # fmt: skip
    return Refused(f"{what} was refused ({code}{f' {why}' if why else ''}): {message}", code, why)


def role_line(kind: Kind, verb: str) -> str:
    """One rule of a Role, as YAML writes it in a line."""
    resource, _, sub = kind.plural.partition("/")
    full = f"{resource}/{sub}" if sub else resource
    return f'{{apiGroups: ["{kind.group}"], resources: [{full}], verbs: [{verb}]}}'


def _missing(said: Mapping[str, Any], what: str, kind: Kind, namespace: str, code: int) -> Refused:
    details = said.get("details") or {}
    message = str(said.get("message", ""))
    if message.startswith("namespaces ") or details.get("kind") == "namespaces":
        return Refused(f"there is no namespace {namespace}; see: kubectl get namespaces", code, "NotFound")
    if details.get("name"):
        return Missing(f"there is no {what} in namespace {namespace}", code, "NotFound")
    return NotInstalled(not_installed(kind), code, "NotFound")


def not_installed(kind: Kind) -> str:
    """Which operator brings this kind, and where it is told how."""
    if not kind.operator:
        return f"this cluster does not know {kind.kind} ({kind.api_version})"
    told = f"; its administrator installs it as {kind.install} says" if kind.install else ""
    lacks = f"{kind.operator} is not installed, or another version"
    return f"this cluster has no {kind.kind} ({kind.api_version}): {lacks}{told}"


def _is_of_webhook(message: str) -> bool:
    return "admission webhook" in message or "calling webhook" in message or "ValidatingAdmissionPolicy" in message


def _status(body: bytes) -> Mapping[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _short(message: str, most: int = 600) -> str:
    line = " ".join(message.split())
    return line if len(line) <= most else line[: most - 3] + "..."
