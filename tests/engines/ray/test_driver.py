"""What the process that speaks to Ray makes of what cannot be."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from allranks.engines.ray.said import said
from allranks.serving.folder import Unfit

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Serve's, where it is imported


def test_what_the_machine_has_not_is_named_and_not_awaited() -> None:
    from allranks.engines.ray.driver import must_fit

    there = {"CPU": 9.0, "GPU": 2.0, "memory": 1e9}
    must_fit([{"CPU": 2.1, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}], there)
    with pytest.raises(Unfit, match="the service takes 4 GPU and Ray finds 2 on this machine; take less, or name a"):
        must_fit([{"CPU": 2.1, "GPU": 2.0}] * 2, there)
    with pytest.raises(Unfit, match="the service takes 1 accelerator and Ray finds 0 "):
        must_fit([{"accelerator": 1.0}], there)


def test_what_serve_does_not_know_of_a_manifest_is_named() -> None:
    from allranks.engines.ray.driver import checked

    with pytest.raises(Unfit, match=r"^engines.ray.manifest: http_options.port: .* found 'abc'$"):
        checked({"http_options": {"port": "abc"}, "applications": []})


def test_a_cluster_that_asks_for_a_token_is_not_told_as_one_that_is_not_there() -> None:
    from allranks.engines.ray.driver import unreached

    error = ConnectionError("Failed to connect to Ray cluster at head:6379")
    told = "the Ray cluster at head:6379 cannot be reached: Failed to connect to Ray cluster at head:6379"
    assert unreached("head:6379", error) == told
    error.__cause__ = RuntimeError("Failed to connect to GCS.\n RPC error: InvalidAuthToken: missing or incorrect")
    assert unreached("head:6379", error).startswith(f"{told}; it asks for a token: set RAY_AUTH_MODE=token")


def test_an_error_of_another_process_is_told_by_its_own_words() -> None:
    from ray.exceptions import RayTaskError

    theirs: Any = RayTaskError("ready()", "ray::ready() (pid=1)\n  stack", RuntimeError("no room\nmore"))
    assert said(theirs) == "RuntimeError: no room"
    assert said(theirs.as_instanceof_cause()) == "RuntimeError: no room"
    assert said(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"


def test_a_cluster_that_breaks_while_ray_waits_for_it_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import worker

    from allranks.engines.ray import driver

    looks = iter([[("log_monitor", 0)], [("log_monitor", 0), ("raylet", 0)]])
    monkeypatch.setattr(worker, "_global_node", SimpleNamespace(dead_processes=lambda: next(looks)))
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(driver.Driver, "_listen", lambda _: None)
    mine, words = os.pipe()
    config = {"applications": [{"name": "chat", "args": {}}]}
    one = driver.Driver(driver.Task(config, "of somebody", {}), words)
    with open(mine, "rb") as heard, one._words:
        with pytest.raises(SystemExit):
            one._watch()
        assert json.loads(heard.readline()) == {"lost": "the raylet of its Ray cluster was lost"}
