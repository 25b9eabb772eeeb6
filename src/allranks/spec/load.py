"""From a file to a Job or a Service and back. Every problem is reported at once, each with its line and column.

::

    job.yaml:4:1: unknown field 'node'; did you mean 'nodes'?
    job.yaml:9:10: failure.grace: found 10; a duration needs its unit: write 10s
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from allranks.errors import SpecError
from allranks.spec.job import Job
from allranks.spec.service import Service, Spec
from allranks.spec.tree import EMPTY, INIT, Node, Position, Problem, read
from allranks.spec.write import dump

__all__ = ["dump", "load", "load_job", "must_be_job", "parse", "parse_job"]

LARGEST = 1024 * 1024
MOST_SHOWN = 50
KINDS: dict[str, type[Spec]] = {"Job": Job, "Service": Service}


def load(path: str | PathLike[str]) -> Spec:
    """Read the job or service in a YAML file; ``-`` is standard input. Raises SpecError with every problem found."""
    source = "<stdin>" if str(path) == "-" else str(path)
    try:
        text = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{source}:{line}: this is not UTF-8 text; save the file as UTF-8") from error
    except (OSError, ValueError) as error:
        raise SpecError(f"{source}: {_unreadable(error, Path(path))}") from error
    return parse(text, source)


def parse(text: str, source: str = "job.yaml") -> Spec:
    """Read the spec in a YAML text; ``source`` stands before each problem. Raises SpecError with every one found."""
    if len(text) > LARGEST:
        raise SpecError(f"{source}: the file is larger than 1 MiB; a spec is a page or two")
    root, problems = read(text.replace("\r\n", "\n").replace("\r", "\n"))
    spec, misfits = _spec(root) if root else (None, [])
    problems += misfits
    if spec is None or problems:
        raise SpecError(_listing(source, problems))
    return spec


def load_job(path: str | PathLike[str]) -> Job:
    """Read a file that must hold a job. Raises SpecError."""
    return must_be_job(load(path), str(path))


def parse_job(text: str, source: str = "job.yaml") -> Job:
    """Read a text that must hold a job. Raises SpecError."""
    return must_be_job(parse(text, source), source)


def must_be_job(spec: Spec, source: str) -> Job:
    """The spec, if it is a job's. Raises SpecError."""
    if isinstance(spec, Job):
        return spec
    raise SpecError(f"{source}: found kind: Service, where a Job is needed; start it with: allranks serve {source}")


def _bytes(path: str | PathLike[str]) -> bytes:
    """One byte more than is allowed, at most: ``parse`` then sees that it is too much."""
    if str(path) == "-":
        return sys.stdin.buffer.read(LARGEST + 1)
    with open(path, "rb") as file:
        return file.read(LARGEST + 1)


def _unreadable(error: Exception, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"no such file; {_beside(path) or INIT}"
    if isinstance(error, IsADirectoryError):
        return "this is a directory; name the file in it"
    if isinstance(error, PermissionError):
        return "permission denied; you may not read this file"
    return str(getattr(error, "strerror", None) or error)


def _beside(path: Path) -> str:
    from allranks.spec.wording import nearest

    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"did you mean {str(path.parent / near)!r}?" if near else ""


def _spec(root: Node) -> tuple[Spec | None, list[Problem]]:
    """Make what its kind says of the tree, or say what does not fit."""
    if problem := _foreign(root):
        return None, [problem]
    kind = root.value.get("kind")
    spec, problems = _validated(root, KINDS.get(kind.value if kind and isinstance(kind.value, str) else "", Job))
    if kind is None:
        problems.append(Problem(root.position, "missing field 'kind'; write 'kind: Job' or 'kind: Service'"))
    return spec, problems


def _foreign(root: Node) -> Problem | None:
    """Why it would be no use to read this as a spec."""
    if root.value is None:
        return Problem(root.position, EMPTY)
    if not isinstance(root.value, dict):
        found = "a list" if isinstance(root.value, list) else "text"
        return Problem(root.position, f"found {found}; a spec is a mapping, lines of 'name: value'")
    if "apiVersion" in root.value:
        way_out = "what holds a gang becomes one by: allranks convert FILE > job.yaml"
        return Problem(root.keys["apiVersion"], f"found apiVersion, so this is a manifest and no spec; {way_out}")
    return None


def _validated(root: Node, model: type[Spec]) -> tuple[Spec | None, list[Problem]]:
    """Where a field is text, a bare number or true stands for its own text, exactly as it is written."""
    as_text: set[int] = set()
    while True:
        try:
            return model.model_validate(root.plain(as_text)), []
        except ValidationError as error:
            errors = error.errors(include_url=False)
        bare = {id(node) for error in errors if (node := _bare(root, error))} - as_text
        if not bare:
            return None, _problems(root, errors, model)
        as_text |= bare


def _bare(root: Node, error: ErrorDetails) -> Node | None:
    """Find the bare scalar that stands where text is allowed."""
    node = _walk(root, error["loc"])[-1]
    return node if error["type"] == "string_type" and node.text and node.value is not None else None


def _walk(root: Node, location: Sequence[int | str]) -> list[Node]:
    """List the nodes on the way; steps that pydantic adds for itself, or that are missing, lead nowhere."""
    nodes = [root]
    for step in location:
        value = nodes[-1].value
        if isinstance(value, dict) and step in value:
            nodes.append(value[step])
        if isinstance(value, list) and isinstance(step, int):
            nodes.append(value[step])
    return nodes


def _problems(root: Node, errors: list[ErrorDetails], model: type[Spec]) -> list[Problem]:
    from allranks.spec.wording import model_at, nearest_field, sentence

    placed = sorted(((_position(root, error), error) for error in errors), key=lambda pair: pair[0])
    # Wording costs more than finding: a file of ten thousand slips is told of the first ones.
    placed = placed[: MOST_SHOWN + 1]
    meant = {
        (*error["loc"][:-1], nearest_field(str(error["loc"][-1]), model_at(error["loc"][:-1], model), model))
        for _, error in placed
        if error["type"] == "extra_forbidden"
    }
    # 'missing run' says nothing new beside "unknown field 'runn'; did you mean 'run'?".
    return [
        Problem(position, sentence(error, model))
        for position, error in placed
        if error["type"] != "missing" or error["loc"] not in meant
    ]


def _position(root: Node, error: ErrorDetails) -> Position:
    """Say where: the name that is wrong, the value that is wrong, or what lacks something."""
    location = error["loc"]
    if error["type"] != "extra_forbidden":
        if location[-1:] != ("[key]",):
            return _walk(root, location)[-1].position
        location = location[:-1]
    holder = _walk(root, location[:-1])[-1]
    return holder.keys.get(str(location[-1]), holder.position)


def _listing(source: str, problems: list[Problem]) -> str:
    problems = sorted(problems, key=lambda problem: problem.position)
    lines = [f"{source}:{problem.position.line}:{problem.position.column}: {problem}" for problem in problems]
    more = ["... and more"] if len(lines) > MOST_SHOWN else []
    return "\n".join(lines[:MOST_SHOWN] + more)
