"""One model and one service for all tests that break neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.models import save, save_tokenizer
from tests.serving.service import Serving, serving

KEY = "sesame"
LIMITS = "limits: {concurrent: 8, queue: 40, choices: 4, body: 1Mi}\napi_key: {env: SERVICE_KEY}\n"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with state and cache of its own: what one service has imported, the next one forks."""
    return tmp_path_factory.mktemp("serving")


@pytest.fixture(scope="session")
def model(place: Path) -> Path:
    pytest.importorskip("transformers")
    save_tokenizer(save(place / "llama"))
    return place / "llama"


@pytest.fixture(scope="session")
def service(place: Path, model: Path) -> Iterator[Serving]:
    with serving(place, model, "kept", LIMITS, SERVICE_KEY=KEY) as found:
        yield found
