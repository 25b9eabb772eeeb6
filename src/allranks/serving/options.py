"""What a serving rank is told on its command line; the key of the service never is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from allranks.serving.folder import UNFIT

if TYPE_CHECKING:
    from allranks.spec.job import Job
    from allranks.spec.service import Service


ENVIRONMENT = {
    "NCCL_GRAPH_MIXING_SUPPORT": "0",  # no two graphs with collectives run at a time here; allowing for it costs speed
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""What the ranks want in their environment: from the beginning, as a forked rank could not set it any more."""


@dataclass(frozen=True)
class Options:
    """One gang's way of serving. ``context`` 0 means the model's own; sizes are bytes, times seconds.

    ``key_env`` and ``key_file`` say where the API key is. ``drain`` is how long running requests may take to end once
    the gang is told to. A rank is given up for lost when it is silent for ``silence`` (0: 1 on a
    GPU, 2 on CPUs, where other work may keep it from speaking), and the gang when its loop
    stands still for ``stall`` although nothing as long was seen at warm-up. ``compile`` is how much of a decoding step
    is compiled on a GPU, 0 to 3, where layers are not fused: a faster step for a start that takes minutes.
    """

    model: str
    name: str = ""
    dtype: str = "auto"
    shard: str = "auto"
    context: int = 0
    concurrent: int = 64
    queue: int = 256
    choices: int = 8
    body: int = 4 * 2**20
    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = ""
    key_file: str = ""
    chat_template: str = ""
    drain: float = 25.0
    silence: float = 0.0
    stall: float = 3.0
    compile: int = 0

    @property
    def served_name(self) -> str:
        """The name by which clients ask for the model."""
        return self.name or (Path(self.model).name if Path(self.model).is_dir() else self.model)

    def argv(self) -> list[str]:
        """The words that ``parse`` makes the same options of."""
        changed = [(field.name, getattr(self, field.name)) for field in fields(self)]
        defaults = {field.name: field.default for field in fields(self)}
        return [f"--{name.replace('_', '-')}={value}" for name, value in changed if value != defaults[name]]


def parse(words: Sequence[str]) -> Options:
    """Read a rank's command line; leaves with UNFIT and a message when it is wrong, as another version's may be."""
    parser = _Parser("python -m allranks.serving", allow_abbrev=False)
    for field in fields(Options):
        kind = {"int": int, "float": float}.get(str(field.type), str)
        required = field.name == "model"
        default = None if required else field.default
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=default, required=required)
    return Options(**vars(parser.parse_args(words)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(UNFIT, f"serving: {message}; is the same version of allranks here and where it was started?\n")


def of_service(service: Service, folder: Path | None) -> Options:
    """The options that a spec means; its relative paths start from ``folder``.

    None: the ranks are in containers. Then a path is the container's own, the key of a Secret is in a variable, and a
    service that names no host listens on every address.
    """
    limits, key = service.limits, service.api_key
    drain = max(service.failure.grace.seconds - 5, service.failure.grace.seconds / 2)
    model, name = _model(service, folder)
    template = service.chat_template or ""
    return Options(
        model=model,
        name=name,
        dtype=service.dtype,
        shard=service.shard,
        context=limits.context or 0,
        concurrent=limits.concurrent,
        queue=limits.queue,
        choices=limits.choices,
        body=int(limits.body),
        host=service.host or ("127.0.0.1" if folder else "0.0.0.0"),
        port=service.port,
        key_env=_key_variable(service),
        key_file=str(_path(folder, key.file)) if folder and key and key.file else "",
        chat_template=str(_path(folder, template)) if folder and template else template,
        drain=drain,
    )


def serving(service: Service, options: Options, python: str) -> Job:
    """The gang whose ranks serve the model by that interpreter; what they find wrong with it no restart would mend."""
    gang = service.gang((python, "-m", "allranks.serving", *options.argv()))
    failure = gang.failure.model_copy(update={"final": (*gang.failure.final, UNFIT)})
    return gang.model_copy(update={"env": {**ENVIRONMENT, **gang.env}, "failure": failure})


def _model(service: Service, folder: Path | None) -> tuple[str, str]:
    """The model's folder or its name on the hub, and what clients call it; empty for that same name."""
    model = str(service.model)
    if folder is None:
        return model, service.name if model.startswith("/") else ""
    path = _path(folder, model)
    return str(path) if path.exists() or _is_a_path(folder, model) else model, service.name if path.exists() else ""


def _key_variable(service: Service) -> str:
    from allranks.spec.service import KEY_VARIABLE

    key = service.api_key
    return "" if key is None else KEY_VARIABLE if key.secret else key.env or ""


def _path(folder: Path, name: str) -> Path:
    return (folder / Path(name).expanduser()).absolute()


def _is_a_path(folder: Path, name: str) -> bool:
    """Names on the hub are NAME or OWNER/NAME; where there is a folder OWNER, a path was meant."""
    return (
        name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and _path(folder, name).parent.is_dir())
    )
