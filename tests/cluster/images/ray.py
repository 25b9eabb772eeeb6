"""Ray in an environment of its own, beside torch's, as an image has it that was made for Ray."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.cluster.images.root import PATIENCE, CannotBuild
from tests.cluster.layout import CHECKOUT, PYTHON

VERSION = "2.60.0"
MAKE = """
cd "$0" && . scripts/index.sh && follow_pip
.tools/bin/uv venv --quiet --clear --no-python-downloads --python "$1" "$2"
.tools/bin/uv pip install --quiet --compile-bytecode --python "$2/bin/python" "ray[serve]==$3"
"""


def environment(cache: Path) -> Path:
    """Where it is, made if it is not there yet.

    Raises:
        CannotBuild: the package index does not give it.
    """
    path = cache / f"ray-{VERSION}-{PYTHON.resolve().name}"
    if path.exists():
        return path
    try:
        command = ["bash", "-ec", MAKE, str(CHECKOUT), str(PYTHON.resolve()), str(path), VERSION]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    if done.returncode:
        shutil.rmtree(path, ignore_errors=True)
        raise CannotBuild(f"ray[serve]=={VERSION} cannot be had: {done.stderr.strip()[-500:]}")
    return path
