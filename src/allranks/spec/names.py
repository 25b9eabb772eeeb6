"""Names as an API server takes them: it refuses any other, whatever the engine, so the spec does too.

The rules are those of k8s.io/apimachinery/pkg/util/validation.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_PART}(\.{_PART})*"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
HUGE_PAGES = "hugepages-"
"""What the name of a resource that is memory in pages of one size begins with."""


def _object(name: str) -> str:
    if len(name) > 253 or not re.fullmatch(SUBDOMAIN, name):
        raise ValueError(
            "allowed is an object's name: a-z, 0-9, - and ., at most 253, first and last a letter or digit"
        )
    return name


def _namespace(name: str) -> str:
    if len(name) > 63 or not re.fullmatch(_PART, name):
        raise ValueError("allowed is a namespace's name: a-z, 0-9 and -, at most 63, first and last a letter or digit")
    return name


def _queue(name: str) -> str:
    if len(name) > 63 or not re.fullmatch(SUBDOMAIN, name):
        raise ValueError("allowed is a queue's name: a-z, 0-9, - and ., at most 63, first and last a letter or digit")
    return name


def is_key(text: str) -> bool:
    """Whether it is a qualified name: ``NAME`` of at most 63, or ``DOMAIN/NAME``."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not re.fullmatch(SUBDOMAIN, prefix)):
        return False
    return len(name) <= 63 and bool(re.fullmatch(_NAME, name))


def _key(text: str) -> str:
    if not is_key(text):
        raise ValueError(
            "allowed is a label's key: NAME or DOMAIN/NAME; NAME has letters, digits, -, _ and ., at most 63"
        )
    return text


def _annotation_key(text: str) -> str:
    _key(text.lower())  # an annotation's domain may have capitals
    return text


def _value(text: str) -> str:
    if text and (len(text) > 63 or not re.fullmatch(_NAME, text)):
        raise ValueError("allowed is a label's value: letters, digits, -, _ and ., at most 63, or nothing")
    return text


def _resource(name: str) -> str:
    domain, slash, _ = name.rpartition("/")
    own = name == "ephemeral-storage" or name.startswith(HUGE_PAGES)
    if not is_key(name) or not (slash or own) or domain.startswith("requests.") or domain.endswith("kubernetes.io"):
        raise ValueError("allowed is a resource's name, DOMAIN/NAME such as rdma/hca, or hugepages-2Mi")
    return name


_TEXT = WithJsonSchema({"type": "string"})
_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
ObjectName = Annotated[str, AfterValidator(_object), _TEXT]
NamespaceName = Annotated[str, AfterValidator(_namespace), _TEXT]
QueueName = Annotated[str, AfterValidator(_queue), _TEXT]
LabelKey = Annotated[str, AfterValidator(_key), _TEXT]
AnnotationKey = Annotated[str, AfterValidator(_annotation_key), _TEXT]
LabelValue = Annotated[str, AfterValidator(_value), _SCALAR]
ResourceName = Annotated[str, AfterValidator(_resource), _TEXT]
