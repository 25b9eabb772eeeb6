"""What our own processes start each other by, whether they run from the bundle or from the package."""

from __future__ import annotations

import os
import sys

NODE = os.path.dirname(os.path.abspath(__file__))
STARTED = os.path.dirname(getattr(sys.modules["__main__"], "__file__", None) or "")


def entry() -> str:
    """The file to start a part of ours with: the bundle when this was started by it, else ``node/__main__.py``."""
    return STARTED if os.path.isfile(STARTED) else os.path.join(NODE, "__main__.py")
