"""From a spec to a rank's command line and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.serving.folder import UNFIT
from allranks.serving.options import Options, of_service, parse
from allranks.spec.load import parse as parse_spec
from allranks.spec.service import Service


def options(text: str, folder: Path) -> Options:
    service = parse_spec(f"kind: Service\nname: chat\n{text}", "service.yaml")
    assert isinstance(service, Service)
    return of_service(service, folder)


def test_a_command_line_says_what_differs_and_is_read_back(tmp_path: Path) -> None:
    wanted = options("model: ./m\nlimits: {context: 512, queue: 3}\nport: 9\nfailure: {grace: 60s}\n", tmp_path)
    assert parse(wanted.argv()) == wanted
    assert wanted == Options(f"{tmp_path}/m", context=512, queue=3, port=9, drain=55.0)
    assert Options("m").argv() == ["--model=m"]


@pytest.mark.parametrize(
    ("name", "is_a_path"),
    [("./m", True), ("/m", True), ("a/b/c", True), ("here/m", True), ("m", False), ("a/m", False)],
)
def test_a_name_is_a_path_where_it_can_be_no_name_on_the_hub(tmp_path: Path, name: str, is_a_path: bool) -> None:
    (tmp_path / "here").mkdir()
    found = options(f"model: {name}\n", tmp_path).model
    assert found == (str(tmp_path / name).replace("/./", "/") if is_a_path and name != "/m" else name)


def test_words_of_another_version_end_the_rank_for_good(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--model=m", "--new-in-the-next=1"])
    assert left.value.code == UNFIT
    assert "unrecognized arguments: --new-in-the-next=1; is the same version" in capsys.readouterr().err


def test_the_key_is_named_and_never_said(tmp_path: Path) -> None:
    found = options("model: m\napi_key: {env: CHAT_KEY}\n", tmp_path)
    assert (found.key_env, found.argv()) == ("CHAT_KEY", ["--model=m", "--key-env=CHAT_KEY"])
    assert options("model: m\napi_key: {file: key}\n", tmp_path).key_file == str(tmp_path / "key")
