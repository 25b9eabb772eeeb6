"""Which cluster, as whom: kubectl's rules, and one clear error for each way it can be wrong."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from allranks.cli.main import call
from allranks.engines.kubernetes import client, kubeconfig
from allranks.errors import EngineError


def write(path: Path, **fields: Any) -> Path:
    whole = {
        "clusters": [{"name": "c", "cluster": {"server": "https://c.invalid:6443/"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
        "current-context": "x",
        **fields,
    }
    path.write_text(json.dumps(whole))
    return path


def load(*files: Path, **env: str) -> kubeconfig.Access:
    return kubeconfig.load({"KUBECONFIG": os.pathsep.join(map(str, files)), **env})


def test_a_file_says_server_namespace_and_token(tmp_path: Path) -> None:
    access = load(write(tmp_path / "config"))
    assert (access.server, access.namespace, access.context) == ("https://c.invalid:6443", "team-a", "x")
    assert access.headers() == {"Authorization": "Bearer t"}


def test_of_several_files_the_first_that_says_something_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "1", clusters=[], contexts=[], users=[{"name": "u", "user": {"token": "first"}}])
    second = write(tmp_path / "2", **{"current-context": "other"})
    access = load(tmp_path / "not there", first, second)
    assert (access.context, access.server) == ("x", "https://c.invalid:6443")
    assert access.headers() == {"Authorization": "Bearer first"}


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("rotated\n")
    access = load(write(tmp_path / "config", users=[{"name": "u", "user": {"tokenFile": "token"}}]))
    assert access.headers() == {"Authorization": "Bearer rotated"}


def test_a_credential_plugin_is_asked_once_while_its_token_lasts(tmp_path: Path) -> None:
    plugin, asked = tmp_path / "plugin", tmp_path / "asked"
    answer = {"status": {"token": "issued", "expirationTimestamp": "2999-01-01T00:00:00Z"}}
    plugin.write_text(f"#!/bin/sh\necho $KUBERNETES_EXEC_INFO >> {asked}\necho '{json.dumps(answer)}'\n")
    plugin.chmod(stat.S_IRWXU)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    access = load(write(tmp_path / "config", users=[{"name": "u", "user": user}]))
    assert access.headers() == access.headers() == {"Authorization": "Bearer issued"}
    assert len(asked.read_text().splitlines()) == 1
    access.renew()
    access.headers()
    assert len(asked.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"current-context": ""}, "has no current context; choose one with 'kubectl config use-context NAME'"),
        ({"current-context": "y"}, "has no context 'y'; there are: x"),
        ({"clusters": []}, "has no cluster 'c'; there are: none"),
        ({"users": []}, "has no user 'u'"),
        ({"clusters": [{"name": "c", "cluster": {"server": "c.invalid"}}]}, "must be an https:// address"),
    ],
)
def test_a_context_that_leads_nowhere_is_named(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError) as error:
        load(write(tmp_path / "config", **fields))
    assert words in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [{"contexts": 5}, {"clusters": {}}, {"users": [1]}, {"clusters": [{"name": "c", "cluster": "https://c"}]}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_no_list_of_entries_is_named(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=rf"config: {next(iter(fields))}: found .*, allowed is"):
        load(write(tmp_path / "config", **fields))


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": "login"}, "allowed is a mapping with 'command'"),
        ({"exec": {"command": "true", "args": "-c"}}, "args is a list of words"),
        ({"exec": {"command": "true", "env": {"A": "1"}}}, "env one of entries with 'name' and 'value'"),
        ({"exec": {"command": "true"}}, "true gave no credentials: what it printed is no JSON"),
        ({"exec": {"command": "echo", "args": ["[]"]}}, "echo gave no credentials: what it printed is no JSON"),
        ({"token": ["secret"]}, "found token as a list, allowed is text"),
        ({"client-certificate-data": "!!!"}, "client-certificate-data is no base64"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value),
)
def test_what_is_not_what_a_kubeconfig_has_there_is_told(tmp_path: Path, user: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError) as error:
        load(write(tmp_path / "config", users=[{"name": "u", "user": user}])).tls()
    assert words in str(error.value)


def test_a_folder_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Is a directory"):
        load(tmp_path)


def test_a_plugin_that_is_not_installed_is_named_with_its_own_hint(tmp_path: Path) -> None:
    user = {"exec": {"command": "no-such-plugin", "installHint": "get it from your cloud"}}
    access = load(write(tmp_path / "config", users=[{"name": "u", "user": user}]))
    with pytest.raises(EngineError, match="no credential plugin no-such-plugin; get it from your cloud"):
        access.headers()


@pytest.fixture
def fresh_client() -> None:
    client.connect.cache_clear()


def test_without_a_kubeconfig_run_says_so(
    fresh_client: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["run", "--engine", "jobset", "--", "python3", "-V"]) == 69
    assert "no kubeconfig" in capfd.readouterr().err


def test_a_server_that_is_not_there_is_waited_for_once_and_told_once(
    fresh_client: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    cluster = {"server": f"http://127.0.0.1:{port}"}
    path = write(tmp_path / "config", clusters=[{"name": "c", "cluster": cluster}])
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert call(["list"]) == 69
    said = capfd.readouterr().err
    assert said.count("cannot be reached at") == 1
    assert f"http://127.0.0.1:{port}: Connection refused" in said
    assert "no runs" not in said
    (tmp_path / "job.yaml").write_text("{kind: Job, name: digits, image: some, run: 'true'}")
    assert call(["run", "--engine", "jobset", str(tmp_path / "job.yaml")]) == 69
    assert capfd.readouterr().err.count("cannot be reached at") == 1
    assert call(["status", "nobody"]) == 69
    assert "It may be elsewhere: the API server of context x cannot be reached" in capfd.readouterr().err
    client.connect.cache_clear()


def test_the_doctor_of_an_engine_with_containers_asks_for_a_jobs_file(
    fresh_client: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path / "config")))
    monkeypatch.chdir(tmp_path)
    assert call(["doctor", "--engine", "jobset"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("allranks: --engine jobset without a job's file: image: engine jobset runs containers")
    assert line.endswith("next: --spec job.yaml")
