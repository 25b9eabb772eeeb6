"""Who cancelled a run and why: written beside its record before the signal, read by whoever gets the signal."""

from __future__ import annotations

import json
import os
import secrets
from typing import Tuple

from allranks.node.files import FULL

EXIT_TERMINATED = 143
"""Of who was ended by SIGTERM, as a shell would say it."""


def write_cancel(state: str, reason: str, code: int) -> None:
    """Say why before the signal that cancels; the first reason stays, and nobody ever reads half of it.

    Where the disk is full the reason is lost, and the signal does the rest.
    """
    path = os.path.join(state, "cancel")
    fresh = f"{path}.{secrets.token_hex(4)}"
    try:
        with open(fresh, "x", encoding="utf-8") as file:
            json.dump({"reason": reason, "code": code}, file)
        os.link(fresh, path)
    except FileExistsError:
        pass  # somebody was first
    except OSError as error:
        if error.errno not in FULL:
            raise
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)


def read_cancel(state: str) -> Tuple[str, int]:
    """Who cancelled, and what ``run`` exits with, as the canceller wrote it before its signal."""
    try:
        with open(os.path.join(state, "cancel"), encoding="utf-8") as file:
            asked = json.load(file)
        return str(asked["reason"]), int(asked["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return "cancelled by a signal", EXIT_TERMINATED
