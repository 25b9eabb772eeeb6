"""What a zygote imports: read from the script's source, and learned from its ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from allranks.node.fork import preload
from allranks.node.fork.imports import Guard, Installed, Recorder, UserModule, import_installed
from allranks.node.fork.pycommand import parse

SCRIPT = ["python", "train.py"]


def scan(folder: Path, source: str, argv: list[str] | None = None, **env: str) -> preload.Scan:
    (folder / "train.py").write_text(source)
    return preload.scan(parse(argv or SCRIPT, str(folder)), str(folder), env)


def test_all_imports_of_the_script_are_found_once_and_in_order(tmp_path: Path) -> None:
    source = """
import torch, numpy as np
from torch import nn
from torch.utils.data import DataLoader
def main():
    import deepspeed
try:
    import apex
except ImportError:
    import torch
"""
    assert scan(tmp_path, source).names == [
        "torch", "numpy", "torch:nn", "torch.utils.data", "torch.utils.data:DataLoader", "deepspeed", "apex",
    ]  # fmt: skip


def test_imports_of_the_users_own_modules_are_followed_but_their_names_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "__init__.py").write_text("from . import inner\nimport json")
    (tmp_path / "lib" / "inner" / "__init__.py").write_text("from .. import other\nfrom ..other import x\nimport csv")
    (tmp_path / "lib" / "other.py").write_text("import train\nimport wave\nx = 1")
    found = scan(tmp_path, "import lib\nimport torch")
    assert found.names == ["torch", "json", "csv", "wave"]
    assert len(found.files) == 4


def test_a_module_on_pythonpath_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.py").write_text("import torch")
    assert scan(tmp_path, "import mine", PYTHONPATH="src").names == ["torch"]


def test_a_module_run_by_name_is_found_with_its_package(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("import json")
    (tmp_path / "pkg" / "__main__.py").write_text("from . import part")
    (tmp_path / "pkg" / "part.py").write_text("import csv")
    assert scan(tmp_path, "", ["python", "-m", "pkg"]).names == ["json", "csv"]


@pytest.mark.parametrize("source", ["x = = 1", "\0", "import torch\n" * 100_000])
def test_a_script_that_cannot_be_parsed_yields_nothing(source: str, tmp_path: Path) -> None:
    found = scan(tmp_path, source)
    assert (found.names, found.why) == ([], "")


def test_a_missing_script_yields_nothing(tmp_path: Path) -> None:
    assert preload.scan(parse(SCRIPT), str(tmp_path), {}).names == []


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = '4'",
        "os.environ.setdefault('TORCH_LOGS', 'dynamo')",
        "os.environ.update(TORCHINDUCTOR_MAX_AUTOTUNE='1')",
        "os.environ.update({'HF_HOME': '/x'})",
        "os.environ |= {'HF_HOME': '/x'}",
        "os.environ.pop('PYTHONHASHSEED', None)",
        "del environ['LD_PRELOAD']",
        "os.putenv('KMP_AFFINITY', 'x')",
        "def f():\n    import os as o; o.environ['DS_ACCELERATOR'] = 'cpu'",
    ],
)
def test_setting_a_variable_that_imports_read_is_a_reason_to_exec(line: str, tmp_path: Path) -> None:
    assert "read when modules are imported" in scan(tmp_path, f"import os\n{line}\n").why


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['MASTER_PORT'] = '1'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "os.environ['NCCL_DEBUG'] = 'INFO'",
        "os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')",
        "x = os.environ['OMP_NUM_THREADS']",
        "y = os.environ.get('TORCH_LOGS')",
        "settings['OMP_NUM_THREADS'] = 1",
        "sys.path.append('lib')",
        "cursor.execute('x'); items.insert(0, 1); path = 3",
    ],
)
def test_what_a_forked_rank_can_do_as_well_is_no_reason_to_exec(line: str, tmp_path: Path) -> None:
    assert scan(tmp_path, f"import os, sys\n{line}\n").why == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("os.environ[name] = '1'", "names are known only when it runs"),
        ("os.environ.update(settings)", "names are known only when it runs"),
        ("os.environ.clear()", "names are known only when it runs"),
        ("os.execv('x', [])", "replaces its own process"),
        ("sys.path.insert(0, 'x')", "front of sys.path"),
        ("sys.path = ['x']", "front of sys.path"),
        ("sys.path[:0] = ['x']", "front of sys.path"),
    ],
)
def test_a_reason_to_exec_names_file_and_line(line: str, why: str, tmp_path: Path) -> None:
    found = scan(tmp_path, f"import os, sys\n{line}\n").why
    assert found.startswith("train.py:2 ")
    assert why in found


def test_a_changed_file_makes_a_scan_stale(tmp_path: Path) -> None:
    found = scan(tmp_path, "import json")
    assert not found.is_stale()
    os.utime(tmp_path / "train.py", (1, 1))
    assert found.is_stale()


def test_only_variables_that_imports_read_count_as_differences() -> None:
    zygote = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "a", "RANK": "0", "LANG": "C"}
    rank = {
        "OMP_NUM_THREADS": "2",
        "TORCH_LOGS": "b",
        "RANK": "1",
        "LANG": "C",
        "NCCL_DEBUG": "INFO",
        "LD_PRELOAD": "x",
    }
    assert preload.frozen_differences(zygote, rank) == ["LD_PRELOAD", "TORCH_LOGS"]


# ----------------------------------------------------------------------------------------------- the learned list


def learned(store: Path, target: str = "train.py", interpreter: str = "/usr/bin/python3") -> preload.Learned:
    return preload.Learned(str(store), interpreter, parse(["python", target]), "/job")


def test_names_are_kept_in_order_and_once(tmp_path: Path) -> None:
    store = learned(tmp_path / "new" / "folder")
    assert store.read() == []
    assert store.merge(["torch", "json", "torch"]) == ["torch", "json"]
    assert store.merge(["json", "csv"]) == ["csv"]
    assert learned(tmp_path / "new" / "folder").read() == ["torch", "json", "csv"]


def test_scripts_and_interpreters_have_lists_of_their_own(tmp_path: Path) -> None:
    learned(tmp_path).merge(["torch"])
    assert learned(tmp_path, target="other.py").read() == []
    assert learned(tmp_path, interpreter="/opt/python3").read() == []


def test_what_did_harm_is_not_learned_again(tmp_path: Path) -> None:
    store = learned(tmp_path)
    store.merge(["torch", "bad"])
    store.forget(["bad"])
    assert store.merge(["bad", "json"]) == ["json"]
    assert store.read() == ["torch", "json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"modules": 3}', '{"modules": [1, "a b", "../x", null]}', "\xff" * 9])
def test_a_corrupt_file_counts_as_empty_and_is_replaced(text: str, tmp_path: Path) -> None:
    store = learned(tmp_path)
    Path(store.path).write_bytes(text.encode("latin-1"))
    assert store.read() == []
    store.merge(["torch"])
    assert json.loads(Path(store.path).read_text())["modules"] == ["torch"]


def test_the_list_is_bounded_and_leaves_no_other_file(tmp_path: Path) -> None:
    store = learned(tmp_path)
    store.merge([f"m{number}" for number in range(preload.MOST_NAMES + 50)] + ["x" * 300])
    assert len(store.read()) == preload.MOST_NAMES
    assert os.listdir(tmp_path) == [os.path.basename(store.path)]


def test_a_store_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = learned(tmp_path / "file" / "below")
    store.merge(["torch"])
    assert store.read() == []


def test_a_command_line_learns_from_what_its_rank_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    recorded = tmp_path / "recorded"
    recorded.write_text("torch\njson\njson\ncut sho")
    argv, store = [sys.executable, "train.py"], str(tmp_path / "store")
    preload.remember(store, argv, str(tmp_path), str(recorded))
    assert preload.names(store, argv, str(tmp_path)) == ["torch", "json"]
    preload.forget(store, argv, str(tmp_path), "json")
    assert preload.names(store, argv, str(tmp_path)) == ["torch"]
    assert preload.names(store, ["torchrun", "x"], str(tmp_path)) == []


# -------------------------------------------------------------------------------------------- whose a module is


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder at the front of the path, with a virtual environment inside."""
    site = tmp_path / ".venv" / "lib" / "site-packages"
    (site / "vendor").mkdir(parents=True)
    (site / "installed_one.py").write_text("import users_one")
    (site / "vendor" / "vendored_one.py").write_text("")
    (tmp_path / "users_one.py").write_text("raise SystemExit(3)")
    (tmp_path / "space_one").mkdir()
    for folder in (site / "vendor", site, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    return tmp_path


def test_modules_of_the_installation_are_told_from_the_users(job: Path) -> None:
    installed = Installed([str(job)])
    assert installed.owns("json.decoder")
    assert installed.owns("sys")
    assert installed.owns("installed_one")
    assert installed.owns("vendored_one")
    assert installed.owns("users_one") is False
    assert installed.owns("space_one") is False
    assert installed.owns("not_there") is None


def test_a_folder_that_the_job_names_is_the_users_even_in_site_packages(job: Path) -> None:
    vendor = job / ".venv" / "lib" / "site-packages" / "vendor"
    assert Installed([str(vendor)]).owns("vendored_one") is False


def test_the_users_modules_are_neither_imported_nor_reached(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Installed([str(job)])
    guard = Guard(installed)
    monkeypatch.setattr(sys, "meta_path", [guard, *sys.meta_path])
    assert import_installed("users_one", installed) == ""
    assert import_installed("not_there", installed) == ""
    assert import_installed("json.not_there", installed) == ""
    assert import_installed("json:loads", installed) == ""
    assert guard.refused == []
    assert import_installed("installed_one", installed).startswith(UserModule.__name__)
    assert guard.refused == ["users_one"]


def test_a_rank_records_what_it_looks_for_but_not_the_users_modules(job: Path) -> None:
    recorder = Recorder(str(job / "recorded"), Installed([str(job)]))
    for name in ("json", "users_one", "torch.nn.functional" if "torch" in sys.modules else "csv", "not_there"):
        assert recorder.find_spec(name) is None
    assert preload.read_imports(str(job / "recorded"))[0] == "json"
    assert len(preload.read_imports(str(job / "recorded"))) == 2


def test_a_recorder_that_cannot_write_gives_up_quietly(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "nowhere" / "recorded"), Installed([]))
    assert recorder.find_spec("json") is None
    assert recorder.find_spec("csv") is None


def test_names_recorded_are_read_as_far_as_they_are_names(tmp_path: Path) -> None:
    (tmp_path / "recorded").write_bytes(b"json\n\xff\xfe\na b\njson\ncsv\nhalf")
    assert preload.read_imports(str(tmp_path / "recorded")) == ["json", "csv"]
    assert preload.read_imports(str(tmp_path / "missing")) == []
