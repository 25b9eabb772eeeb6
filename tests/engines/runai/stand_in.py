"""Stands in for the ``runai`` program of version RUNAI_VERSION: records what it is told in the file RUNAI_RECORD.

With KUBECTL it makes, of these very arguments, the PyTorchJob that Run:ai would make, in the namespace RUNAI_NAMESPACE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SUBMIT = {"1": ["submit-dist", "pytorch"], "2": ["training", "pytorch", "submit"]}
DELETE = {"1": ["delete", "job"], "2": ["training", "pytorch", "delete"]}
DESCRIBE = {"1": ["describe", "job"], "2": ["training", "pytorch", "describe"]}
NOBODY = "nobody"
FLAGS = {"--large-shm", "--interactive", "--command"}
VERSION = os.environ.get("RUNAI_VERSION", "")


def install(folder: Path, python: str) -> Path:
    """Make it a program named runai in a folder; returns where it records."""
    program = folder / "runai"
    program.write_text(f"#!{python}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    return folder / "record"


def main(argv: list[str]) -> int:
    with open(os.environ["RUNAI_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps(argv) + "\n")
    if VERSION in SUBMIT and _begins(argv, SUBMIT[VERSION]):
        if "--help" in argv:
            print("Flags:\n  --workers int32   number of workers")
            return 0
        return _submit(argv)
    if VERSION in DELETE and _begins(argv, DELETE[VERSION]):
        return _kubectl("delete", "pytorchjob", argv[len(DELETE[VERSION])])
    if VERSION in DESCRIBE and argv == [*DESCRIBE[VERSION], NOBODY]:
        print(f"workload {NOBODY} was not found", file=sys.stderr)
        return 1
    if VERSION in DESCRIBE and _begins(argv, DESCRIBE[VERSION]):
        print(f"Name: {argv[len(DESCRIBE[VERSION])]}\nStatus: Running")
        return 0
    if argv == ["version"]:
        print("Version: 2.18.3")
        return 0
    print(f"unknown command {argv[0]!r} for runai", file=sys.stderr)
    return 1


def _begins(argv: list[str], words: list[str]) -> bool:
    return argv[: len(words)] == words


def _submit(argv: list[str]) -> int:
    print("The job has been submitted successfully")
    return _kubectl("create", "-f", "-", document=job_of(argv, VERSION)) if os.environ.get("KUBECTL") else 0


def job_of(argv: list[str], version: str) -> dict[str, Any]:
    """The PyTorchJob that Run:ai makes of the arguments of a submission."""
    options = dict[str, list[str]]()
    for name, value in _options(argv[len(SUBMIT[version]) :]):
        options.setdefault(name, []).append(value)
    name = options["--name"][0] if version == "1" else argv[3]
    return _job(name, options, argv[argv.index("--") + 1 :])


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    rest = iter(words)
    for word in rest:
        if word == "--":
            return
        if word in FLAGS:
            yield word, ""
        elif word.startswith("-"):
            yield word, next(rest)


def _pairs(words: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _job(name: str, options: dict[str, list[str]], command: list[str]) -> dict[str, Any]:
    container = {
        "name": "pytorch", "image": options["--image"][0], "command": command,
        "env": [_variable(*pair) for pair in _pairs(options.get("-e", [])).items()],
        "volumeMounts": [],
    }  # fmt: skip
    volumes = list(_volumes(options))
    container["volumeMounts"] = [{"name": volume["name"], "mountPath": volume.pop("path")} for volume in volumes]
    template = {
        "metadata": {"labels": _pairs(options["--label"]), "annotations": _pairs(options["--annotation"])},
        "spec": {"containers": [container], "volumes": volumes},
    }
    replicas = {"Master": 1, "Worker": int(options["--workers"][0])}
    return {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {
            "runPolicy": {
                "cleanPodPolicy": options["--clean-pod-policy"][0], "backoffLimit": int(options["--backoff-limit"][0]),
            },
            "pytorchReplicaSpecs": {
                kind: {"replicas": count, "restartPolicy": "Never", "template": template}
                for kind, count in replicas.items() if count
            },
        },
    }  # fmt: skip


def _variable(name: str, value: str) -> dict[str, Any]:
    if not value.startswith("SECRET:"):
        return {"name": name, "value": value}
    secret, _, key = value.removeprefix("SECRET:").partition(",")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _volumes(options: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    for option, source, key in (
        ("--configmap-map-volume", "configMap", "name"),
        ("--secret-volume", "secret", "secretName"),
    ):
        for number, text in enumerate(options.get(option, [])):
            told = _pairs(text.split(","))
            yield {"name": f"{source.lower()}-{number}", source: {key: told["name"]}, "path": told["path"]}


def _kubectl(*words: str, document: dict[str, Any] | None = None) -> int:
    argv = [os.environ["KUBECTL"], "-n", os.environ["RUNAI_NAMESPACE"], *words]
    return subprocess.run(argv, input=json.dumps(document), text=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
