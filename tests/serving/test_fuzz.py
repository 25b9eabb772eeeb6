"""Whatever a client sends, no answer is a 5xx, and each has the shape that the service's own description says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402

from tests.serving.conftest import KEY  # noqa: E402
from tests.serving.models import CONTEXT  # noqa: E402
from tests.serving.service import Serving  # noqa: E402

pytestmark = [
    pytest.mark.gang,
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(3600),  # for --fuzz-cases 10000
]
HELD = {"authorization": f"Bearer {KEY}"}
SHORT = 3


def test_no_request_breaks_the_service(service: Serving, pytestconfig: pytest.Config) -> None:
    # Its pytest plugin does not go with pytest 9: the strategies are used without it.
    description = schemathesis.openapi.from_url(f"{service.url}/openapi.json", headers=HELD)
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) == 10
    varied = [operation for operation in operations if operation.body or operation.query]
    most = -(-pytestconfig.getoption("--fuzz-cases") // len(varied))  # of the others there is one case each
    statuses: Counter[tuple[str, int]] = Counter()
    for operation in operations:

        @settings(max_examples=most, suppress_health_check=list(HealthCheck), deadline=None, database=None)
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            _shorten(case)
            answer = case.call(headers=HELD, timeout=120)
            statuses[case.formatted_path, answer.status_code] += 1
            assert answer.status_code < 500, answer.text
            case.validate_response(answer, checks=[_conforms()])

        check()
    print(f"{statuses.total()} cases: {dict(statuses)}")
    assert statuses.total() >= pytestconfig.getoption("--fuzz-cases")
    assert service.ready()


def _conforms() -> Any:
    from schemathesis.specs.openapi.checks import response_schema_conformance

    return response_schema_conformance


def _shorten(case: Any) -> None:
    """An answer of hundreds of tokens shows nothing more than one of three."""
    for sent in (case.body, case.query):
        if not isinstance(sent, dict) or not ("prompt" in sent or "messages" in sent):
            continue
        limits = [name for name in ("max_tokens", "max_completion_tokens") if sent.get(name) is not None]
        for name in limits:
            if isinstance(sent[name], int) and SHORT < sent[name] < CONTEXT:
                sent[name] = SHORT
        if not limits:
            sent["max_tokens"] = SHORT
