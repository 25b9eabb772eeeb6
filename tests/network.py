"""A network of its own for tests: namespaces on a bridge, as ``ip`` and ``tc`` make them; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

WHY_NOT = "" if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc") else "needs root, ip and tc"
needs_network = pytest.mark.skipif(bool(WHY_NOT), reason=f"NOT TESTED, network namespaces: {WHY_NOT}")


def command(*words: str) -> str:
    """Run it, and fail with what it says."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@contextmanager
def hosts(count: int, prefix: str = "10.77.0.") -> Iterator[list[str]]:
    """Namespaces with eth0 at PREFIX1, PREFIX2 and so on, all on one bridge; gone afterwards."""
    tag = f"ar{os.getpid() % 100000}"
    bridge, names = f"{tag}b", [f"{tag}n{number}" for number in range(count)]
    try:
        command("ip", "link", "add", bridge, "type", "bridge")
        command("ip", "link", "set", bridge, "up")
        for number, name in enumerate(names):
            command("ip", "netns", "add", name)
            command("ip", "link", "add", f"{tag}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            command("ip", "link", "set", f"{tag}v{number}", "master", bridge, "up")
            command("ip", "-n", name, "addr", "add", f"{prefix}{number + 1}/24", "dev", "eth0")
            command("ip", "-n", name, "link", "set", "eth0", "up")
            command("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, timeout=20)


def slow_down(name: str, rate: str = "100mbit") -> None:
    """Let a namespace send no faster than that."""
    bucket = ("rate", rate, "burst", "256kbit", "latency", "50ms")
    command("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *bucket)
