"""What of a service can only fail on every rank at once is refused before anything is started."""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import EngineError, SpecError
from allranks.serving import folder, key

if TYPE_CHECKING:
    from allranks.serving.options import Options
    from allranks.spec.service import Service

PYTHON = (3, 11)
"""transformers' continuous batching has no older one."""
NEEDS = ("torch", "transformers", "fastapi", "uvicorn", "prometheus_client")


def must_be_servable(service: Service, options: Options) -> None:
    """Look at what ranks on this machine would find. Raises SpecError, EngineError for what is not installed."""
    if sys.version_info < PYTHON:
        raise EngineError(f"serving needs Python 3.11 or newer, and this is {platform.python_version()}")
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise EngineError(f"serving needs {', '.join(missing)}; install: pip install 'allranks[serve]'")
    if options.chat_template and not os.access(options.chat_template, os.R_OK):
        raise SpecError(f"chat_template: cannot read {options.chat_template}")
    try:
        key.read(options.key_env, options.key_file)
    except folder.Unfit as error:
        raise SpecError(str(error)) from error
    if not (Path(options.model).exists() or options.model.startswith("/")):
        return  # a name on the hub: the ranks look it up
    try:
        found = folder.look(Path(options.model))
        folder.choose(found, service.gang(("python",)).world_size, service.shard)
    except folder.Unfit as error:
        raise SpecError(f"model: {error}") from error
