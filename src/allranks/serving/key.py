"""The key that clients of a service must send: where it is said to be. It is in no error."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.serving.folder import Unfit


def read(env: str = "", file: str = "") -> str:
    """The key from variable ``env`` or from a file; empty where neither is named. Raises Unfit."""
    if env:
        if key := os.environ.get(env, "").strip():
            return key
        raise Unfit(f"api_key.env: {env} is not set in this shell; export it first")
    if not file:
        return ""
    try:
        key = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unfit(f"api_key.file: cannot read {file}: {error}") from error
    if not key:
        raise Unfit(f"api_key.file: {file} is empty; write the key into it")
    return key
