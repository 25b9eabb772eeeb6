"""``kind: Service``: read, refused, written, and made into the job that is its gang."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.errors import SpecError
from allranks.spec.load import dump, parse
from allranks.spec.service import Service

HEAD = "kind: Service\nname: chat\n"
WHOLE = """\
kind: Service
name: chat
nodes: 2
ranks_per_node: 4
model: /models/llama
dtype: bfloat16
shard: deepspeed
limits:
  context: 4096
  concurrent: 32
  queue: 8
port: 9000
api_key:
  env: CHAT_KEY
chat_template: chat.jinja
env:
  NCCL_DEBUG: INFO
failure:
  restarts: 9
"""


def service(text: str) -> Service:
    spec = parse(text, "service.yaml")
    assert isinstance(spec, Service)
    return spec


def problem(text: str) -> str:
    with pytest.raises(SpecError) as told:
        parse(text, "service.yaml")
    return str(told.value)


def test_a_service_is_written_as_it_was_read() -> None:
    assert dump(service(WHOLE)) == WHOLE


def test_its_gang_has_what_a_job_has_and_the_command_of_the_server() -> None:
    gang = service(WHOLE).gang(("python", "-m", "server"))
    assert (gang.kind, gang.name, gang.nodes, gang.ranks, gang.argv) == (
        "Job",
        "chat",
        2,
        4,
        ("python", "-m", "server"),
    )
    assert gang.env == {"NCCL_DEBUG": "INFO"}
    assert gang.failure.restarts == 9


def test_a_server_of_ones_own_is_its_command() -> None:
    own = service(HEAD + "run: vllm serve m\nlauncher: once\nready: /health\n")
    assert own.gang().argv == ("vllm", "serve", "m")
    assert own.gang().launcher == "once"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "service.yaml:1:1: a Service has either 'model' or 'run'"),
        ("model: m\nrun: x\n", "service.yaml:1:1: a Service has either 'model' or 'run'"),
        ("run: x\ndtype: auto\n", "service.yaml:1:1: 'dtype' is for 'model'; a server of your own ('run') is told by"),
        ("model: m\nlauncher: torchrun\n", "service.yaml:1:1: launcher 'torchrun' is for 'run'; a model is served by"),
        ("model: m\nport: 0\n", "service.yaml:4:7: port: found 0; allowed is a whole number, 1 or more"),
        ("model: m\nshard: vllm\n", "service.yaml:4:8: shard: found 'vllm'; allowed: auto, transformers, deepspeed"),
        ("model: m\nready: health\n", "service.yaml:4:8: ready: found 'health'; allowed is a path such as /health"),
        ("model: m\napi_key: {}\n", "api_key: found a mapping; an api_key has one of 'env', 'file' and 'secret'"),
        ("model: m\nlimit: {}\n", "service.yaml:4:1: unknown field 'limit'; did you mean 'limits'?"),
        ("model: m\nconcurrent: 3\n", "unknown field 'concurrent'; did you mean 'limits.concurrent'"),
        ("model: m\nlimits: {context: 0}\n", "limits.context: found 0; allowed is a whole number, 1 or more"),
        ("model: m\nmodell: 3\n", "unknown field 'modell'; did you mean 'model'?"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(text: str, message: str) -> None:
    assert message in problem(HEAD + text)


def test_a_job_has_none_of_it() -> None:
    assert "unknown field 'model'" in problem("kind: Job\nname: a\nrun: x\nmodel: m\n")


def test_a_service_starts_again_more_often_than_a_job_unless_told_otherwise() -> None:
    given: dict[str, Any] = {"kind": "Service", "name": "chat", "model": "m"}
    assert Service(**given).gang(("serve",)).failure.restarts == 1000
    given["failure"] = {"restarts": 2, "grace": "5s"}
    told = Service(**given).gang(("serve",)).failure
    assert (told.restarts, told.grace.seconds) == (2, 5)


def test_a_name_whose_bytes_are_no_utf_8_is_told_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"text is UTF-8; rename it, or say that it is: LC_ALL=C\.UTF-8"):
        Service.model_validate({"name": "chat", "model": "/models/m\udcff"})
