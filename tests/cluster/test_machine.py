"""A machine that cannot have a cluster is told so at once, in one message, and is left alone.

Each lack is made in namespaces of the test's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.layout import CHECKOUT
from tests.cluster.machine import why_not

pytestmark = pytest.mark.skipif(why_not() != "", reason=why_not())

LACKS = {
    "Go": ("mount -t tmpfs none /usr/local", "Go is needed to build the cluster, 1.25 or newer; none is on PATH"),
    "disk": ('mount -t tmpfs -o size=9m none "$ALLRANKS_CLUSTER_HOME"', "needs 3 GB free at {home}; 0.0 GB are"),
    "packages": ("mount -t tmpfs none /usr/lib/cni", "install --no-install-recommends containernetworking-plugins"),
    "addresses": (
        "ip link add br9 type bridge && ip addr add 10.245.3.1/24 dev br9 && ip link set br9 up",
        "The cluster uses 10.245.0.0/16, and this machine has a route to 10.245.3.0/24 by br9.",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_lacking_is_named_with_what_was_found_and_needed(lack: str, tmp_path: Path) -> None:
    make, message = LACKS[lack]
    script = f'{make}\nexec "$0" -m tests.cluster up'
    done = _run(["unshare", "--mount", "--net", "sh", "-ec", script, sys.executable], tmp_path)
    assert done.returncode == 69, done.stderr
    assert message.format(home=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_root_it_says_so(tmp_path: Path) -> None:
    script = "import os; from tests.cluster.__main__ import main; os.seteuid(65534); raise SystemExit(main())"
    done = _run([sys.executable, "-c", script, "up"], tmp_path)
    assert done.returncode == 69, done.stderr
    assert "The cluster needs root" in done.stderr
    assert "this is user 65534" in done.stderr


def _run(argv: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {**os.environ, "ALLRANKS_CLUSTER_HOME": str(home), "PATH": path}
    return subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=120, check=False)
