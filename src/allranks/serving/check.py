"""What of a service can only fail on every rank at once is refused before anything is started."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import EngineError, SpecError
from allranks.serving import folder

if TYPE_CHECKING:
    from allranks.serving.options import Options
    from allranks.spec.service import Service

NEEDS = ("torch", "transformers", "fastapi", "uvicorn", "prometheus_client")


def must_be_servable(service: Service, options: Options) -> None:
    """Look at what ranks on this machine would find. Raises SpecError, EngineError for what is not installed."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise EngineError(f"serving needs {', '.join(missing)}; install: pip install 'allranks[serve]'")
    if options.key_env and not os.environ.get(options.key_env):
        raise SpecError(f"api_key.env: {options.key_env} is not set in this shell; export it first")
    for what, name in (("api_key.file", options.key_file), ("chat_template", options.chat_template)):
        if name and not os.access(name, os.R_OK):
            raise SpecError(f"{what}: cannot read {name}")
    if not (Path(options.model).exists() or options.model.startswith("/")):
        return  # a name on the hub: the ranks look it up
    try:
        found = folder.look(Path(options.model))
        folder.choose(found, service.gang(("python",)).world_size, service.shard)
    except folder.Unfit as error:
        raise SpecError(f"model: {error}") from error
