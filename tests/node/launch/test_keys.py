"""The ssh key that every node makes from the run's secret."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from allranks.node.launch import keys


def test_the_public_half_is_that_of_the_standards_own_example() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")  # RFC 8032, 7.1
    assert keys.public_of(seed).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen on this machine")
def test_openssh_reads_the_file_and_finds_the_same_public_key(tmp_path: Path) -> None:
    private, public = keys.of_run(b"ab" * 32)
    file = tmp_path / "key"
    file.write_text(private)
    file.chmod(0o600)
    said = subprocess.run(["ssh-keygen", "-y", "-f", file], capture_output=True, text=True, check=True).stdout
    assert said.split()[:2] == public.split()[:2]
    assert keys.of_run(b"ab" * 32) == (private, public) != keys.of_run(b"cd" * 32)
