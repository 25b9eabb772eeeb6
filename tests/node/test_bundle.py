"""The agent travels as one small file and runs on an old Python that has nothing of ours."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from allranks.node import bundle

PYENV = Path.home() / ".pyenv" / "versions"
TOO_OLD = [str(path) for version in ("2.7*", "3.6*", "3.7*") for path in PYENV.glob(f"{version}/bin/python")]
OTHERS = [str(path) for version in ("3.8*", "3.9*", "3.13*") for path in PYENV.glob(f"{version}/bin/python3")]


def test_the_same_code_is_the_same_bytes_and_fits_a_config_map(tmp_path: Path) -> None:
    size = bundle.build(str(tmp_path / "a.pyz"))
    bundle.build(str(tmp_path / "b.pyz"))
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()
    assert size < 256 * 1024


@pytest.mark.parametrize("old", [pytest.param(path, id=Path(path).parents[1].name) for path in TOO_OLD])
def test_a_python_that_is_too_old_says_so_and_what_is_needed(
    tmp_path: Path, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("what somebody has left there, which is longer than what is said, and must not be seen behind it")
    monkeypatch.setattr(bundle, "MAIN", bundle.MAIN.replace("/dev/termination-log", str(log)))
    bundle.build(str(tmp_path / "a.pyz"))
    done = subprocess.run([old, tmp_path / "a.pyz", "init", "plan"], capture_output=True, text=True, check=False)
    version = ".".join(Path(old).parents[1].name.split(".")[:2])
    said = f"allranks: the image's python3 is {version}, and allranks needs 3.8 or newer in it\n"
    assert (done.returncode, done.stderr) == (42, said)
    assert f"allranks: {log.read_text()}\n" == said


def test_the_first_lines_are_understood_by_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = bundle.MAIN.partition("\nfrom ")
    ast.parse(bundle.MAIN, feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 6, 15))
    written = io.StringIO()
    monkeypatch.setattr(written, "close", lambda: None)
    with pytest.raises(SystemExit, match="42"):
        exec(first, {"open": lambda *_: written})
    assert written.getvalue() == "the image's python3 is 3.6, and allranks needs 3.8 or newer in it"


def test_what_the_job_has_on_its_pythonpath_is_not_imported(tmp_path: Path) -> None:
    bundle.build(str(tmp_path / "a.pyz"))
    for name in ("logging", "queue", "secrets", "zipfile", "json", "allranks"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the job has this')")
    for path in (str(tmp_path), "."):
        done = subprocess.run(
            [sys.executable, "a.pyz", "agent", "nowhere", "nobody"],
            env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "'nowhere'" in done.stderr.splitlines()[-1]


def test_it_holds_the_node_the_fabric_a_benchs_ranks_and_the_identities_and_nothing_else(tmp_path: Path) -> None:
    bundle.build(str(tmp_path / "a.pyz"))
    names = zipfile.ZipFile(tmp_path / "a.pyz").namelist()
    assert "allranks/engines/local/identity.py" in names
    strangers = [
        name
        for name in names
        if not name.startswith(("allranks/node/", "allranks/fabric/", "allranks/bench/ranks/"))
        and not name.endswith(("__init__.py", "identity.py"))
    ]
    assert strangers == ["__main__.py", "allranks/bench/collectives.py"]


def test_code_without_docstrings_is_the_same_code_on_the_same_lines(tmp_path: Path) -> None:
    bundle.build(str(tmp_path / "a.pyz"))
    names = [
        name for name in zipfile.ZipFile(tmp_path / "a.pyz").namelist() if name not in ("__main__.py", *bundle.EMPTY)
    ]
    sources = [Path(bundle.ROOT, name).read_bytes() for name in names]
    for source in sources:
        lean = bundle.without_docstrings(source)
        assert _code(lean) == _code(source)
        assert len(lean.split(b"\n")) == len(source.split(b"\n"))
    assert sum(len(bundle.without_docstrings(source)) for source in sources) < 0.9 * sum(map(len, sources))


def _code(source: bytes) -> list[str]:
    """All statements but texts that stand alone, each with its line."""
    tree = ast.parse(source)
    for part in ast.walk(tree):
        for expression in ast.iter_child_nodes(part):
            if isinstance(expression, ast.Expr) and isinstance(expression.value, ast.Constant):
                expression.value.value = ""
    shown = [ast.dump(part) for part in tree.body]
    lines = [part.lineno for part in ast.walk(tree) if isinstance(part, ast.stmt)]
    return [*shown, str(lines)]


@pytest.mark.gang
@pytest.mark.parametrize("python", [sys.executable, *OTHERS])
def test_a_gang_runs_from_the_one_file(tmp_path: Path, python: str) -> None:
    bundle.build(str(tmp_path / "agent.pyz"))
    (tmp_path / "job.py").write_text("import os, sys\nprint(os.environ['RANK'], 'allranks' in sys.modules, sys.argv)\n")
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "secret").write_text("s")
    plan = {
        "run": "b", "engine": "local", "version": "1", "nodes": 2, "ranks_per_node": 2, "launcher": "native",
        "argv": [python, "job.py", "x"], "workdir": str(tmp_path), "coordinator": "127.1.0.1",
        "addresses": ["127.1.0.1", "127.1.0.2"], "state": str(state), "cache": str(tmp_path / "cache"),
    }  # fmt: skip
    (state / "plan.json").write_text(json.dumps(plan))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [python, "agent.pyz", "init", str(state / "plan.json")], cwd=tmp_path, env=env, timeout=60,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    logs = "\n".join(path.read_text() for path in (state / "logs").glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    status = json.loads((state / "status.json").read_text())
    assert (status["phase"], status["notes"]) == ("succeeded", []), logs
    outputs = sorted(path.read_text() for path in state.glob("logs/attempt-0/rank-*.log"))
    assert outputs == [f"{rank} False ['job.py', 'x']\n" for rank in range(4)]


def test_in_a_pod_it_is_laid_out_once_and_its_code_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = tmp_path / "run"
    monkeypatch.setattr(bundle, "MAIN", bundle.MAIN.replace("/run/allranks", str(pod)))
    bundle.build(str(tmp_path / "agent.pyz"))
    argv = [sys.executable, str(tmp_path / "agent.pyz"), "ready"]
    before = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not pod.exists()
    pod.mkdir()
    at_once = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for one in at_once:
        assert (one.communicate()[1].splitlines()[-1], one.returncode) == (before.stderr.splitlines()[-1], 1)
    assert list((pod / "agent/allranks/node/__pycache__").glob("ready.*.pyc"))
    assert "agent.pyz" not in subprocess.run(argv, capture_output=True, text=True, check=False).stderr.replace(
        str(tmp_path / "agent.pyz/__main__.py"), ""
    )
