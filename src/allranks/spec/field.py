"""What the fields of every spec are made of: checked text, names, amounts, and how a field is described."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from allranks.spec.argv import check
from allranks.spec.units import Duration, Quantity

ALL = "all"
CONTAINERS = "mpijob, trainjob, pytorchjob, jobset, runai, ray"
KUBERNETES = "mpijob, trainjob, pytorchjob, jobset"

NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
ENV_FROM = r"^(secret|configmap)/[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
OURS = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
)
MOUNTS = ("/allranks", "/run/allranks")
"""Where the agent's files are in every container."""
SMALLEST_MEMORY = Quantity.parse("1Mi")


def about(text: str, engines: str = ALL, **limits: Any) -> Any:
    """Describe a field: what it is, with its unit, and the engines that honour it."""
    return Field(description=text, json_schema_extra={"engines": engines}, **limits)


def _clean_text(text: str) -> str:
    """Refuse what no process can be given: NUL, and code points that UTF-8 cannot carry."""
    if "\0" in text:
        raise ValueError("text has no NUL character")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        if any("\udc80" <= letter <= "\udcff" for letter in text):  # a byte of the shell's that Python could not read
            raise ValueError("text is UTF-8; rename it, or say that it is: LC_ALL=C.UTF-8")
        raise ValueError("text has no lone surrogate")
    return text


def _env_name(name: str) -> str:
    if not ENV_NAME.fullmatch(name):
        raise ValueError("a variable's name has letters, digits and _, and does not start with a digit")
    if name in OURS or name.startswith("ALLRANKS_"):
        raise ValueError("allranks sets this one for every rank; leave it out")
    return name


def _plain_data(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot carry to an API server."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        _clean_text(text)
        return dict(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError("a manifest holds text, numbers, true, false, null, lists and mappings") from error
    except ValueError as error:
        raise ValueError("a manifest holds no inf, nan or lone surrogate") from error


def _memory(amount: Quantity) -> Quantity:
    if amount < SMALLEST_MEMORY:
        raise ValueError(f"that is {amount.value.normalize():f} bytes; allowed is 1Mi or more, such as 512Mi or 16Gi")
    return amount


def positive(amount: Quantity) -> Quantity:
    if not amount:
        raise ValueError("allowed is more than 0")
    return amount


def whole(amount: Quantity) -> Quantity:
    if not amount.whole:
        raise ValueError("allowed is a whole number")
    return amount


def _some_time(duration: Duration) -> Duration:
    if not duration:
        raise ValueError("allowed is more than 0s")
    return duration


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("allowed is an absolute path")
    return path


def _upwards(path: str) -> str:
    if ".." in path.split("/"):
        raise ValueError("allowed is a path without '..', which Kubernetes refuses")
    return path


def _not_ours(path: str) -> str:
    if path.rstrip("/") in MOUNTS:
        raise ValueError(f"allranks has its own files there; allowed is a path other than {' and '.join(MOUNTS)}")
    return path


def _one_word(text: str) -> str:
    if not text or text.split() != [text]:
        raise ValueError("allowed is one word, without spaces")
    return text


Text = Annotated[str, AfterValidator(_clean_text)]
Word = Annotated[Text, AfterValidator(_one_word)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
HostPath = Annotated[AbsolutePath, AfterValidator(_upwards)]
MountPath = Annotated[AbsolutePath, AfterValidator(_not_ours)]
Timeout = Annotated[Duration, AfterValidator(_some_time)]
Memory = Annotated[Quantity, AfterValidator(_memory)]
# Values may be written bare (OMP_NUM_THREADS: 4); the loader keeps the text as it stands in the file.
Scalar = Annotated[Text, WithJsonSchema({"type": ["string", "number", "boolean"]})]
EnvName = Annotated[str, AfterValidator(_env_name)]
Data = Annotated[dict[str, Any], AfterValidator(_plain_data)]
Manifest = Annotated[Data, about("Merged last into what the engine renders.", "its own")]


def _form_of_run(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list | tuple) else None


Run = Annotated[
    Annotated[Text, Tag("text")] | Annotated[tuple[Text, ...], Field(strict=False), Tag("list")],
    Discriminator(
        _form_of_run,
        custom_error_type="run_type",
        custom_error_message="allowed is a command as text or as a list of words",
    ),
    AfterValidator(check),
]


class Part(BaseModel):
    """A piece of a spec: unknown fields and wrong types are errors, and it never changes."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
