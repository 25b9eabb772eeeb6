"""What a keeper gives a cluster of its own."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from allranks.engines.ray.keeper import roomy, short, with_token
from allranks.errors import EngineError


def test_rays_sockets_find_room_below_whatever_folder_is_for_temporary_files() -> None:
    added = "/allranks-ray-l1g8dxh_/session_2026-11-29_10-14-11_229982_4194304/sockets/plasma_store"
    for folder in ("/tmp", "/scratch/job.1234567", "/scratch/somebody/job.1234567", "/t" * 60):
        assert len(short(folder) + added) <= 107
    assert short("/scratch/job.1234567") == "/scratch/job.1234567"


def test_each_cluster_has_a_token_of_its_own_where_the_user_has_named_none() -> None:
    assert with_token({"A": "b"}) != with_token({"A": "b"})
    assert with_token({"RAY_AUTH_TOKEN": "theirs"}) == {"RAY_AUTH_TOKEN": "theirs"}


def test_a_full_disk_is_told_and_not_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 2**20))
    with pytest.raises(
        EngineError, match=r"^/tmp, the folder for temporary files, has 3 MiB free, and a Ray cluster needs"
    ):
        roomy("/tmp")
