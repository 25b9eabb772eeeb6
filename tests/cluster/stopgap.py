"""The cluster that a kubeconfig names, until there is one of our own."""

from __future__ import annotations

import subprocess
from pathlib import Path

READY = Path("/tmp/kc/READY")
VERSIONS = {
    "mpi-operator": "v0.8.0",
    "jobset": "v0.11.0",
    "trainer": "v2.2.0",
    "training-operator": "v1.9.3",
    "kuberay": "v1.5.0",
    "kueue": "v0.17.0",
}


class Cluster:
    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def kubectl(self, *args: str) -> str:
        command = ["/tmp/kc/work/bin/kubectl", f"--kubeconfig={self.kubeconfig}", *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr.strip()}")
        return done.stdout


def running() -> Cluster:
    return Cluster(Path(READY.read_text().strip()))


def why_not() -> str:
    return "" if READY.exists() else f"no {READY}"
