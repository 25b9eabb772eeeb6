"""A forked rank is what ``python script.py`` would have been: output, errors and status, probe by probe."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import zipapp
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gangs.probes import PROBES
from tests.gangs.zygote_client import Zygote

ARGUMENTS = ["probe.py", "a", "--b=1"]
RANK = {"RANK": "0", "PROBE": "1"}
TORCH = ["numpy", "torch", "torch.distributed", "torch.utils.data", "torch.multiprocessing", "multiprocessing.pool"]
Outcome = tuple[str, int]


def environment() -> dict[str, str]:
    """What both sides start with. Unbuffered, because the order of output and errors is compared too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "XDG_", "ALLRANKS"))}
    kept.pop("TORCH_EXTENSIONS_DIR", None)
    return {**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def plain(argv: list[str], folder: Path, env: dict[str, str]) -> Outcome:
    """Run the command as a shell would, with output and errors in one file."""
    with open(folder / "plain.log", "wb") as log:
        done = subprocess.run(
            argv, cwd=folder, env={**env, **RANK}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True, timeout=120, preexec_fn=no_signal_ignored,
        )  # fmt: skip
    text = (folder / "plain.log").read_text(errors="backslashreplace")
    return comparable(text, folder), done.returncode


def no_signal_ignored() -> None:
    """A test run in the background of a script, or under nohup, has signals ignored that a shell's jobs have not."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def comparable(text: str, folder: Path) -> str:
    """Without what differs from run to run: folder, addresses, a crash's loaded libraries, times of warnings."""
    differing = r"0x[0-9a-f]+|\n\nExtension modules: .*|(?<=\[W)\d{4} [\d:.]+"
    return re.sub(differing, "", text.replace(str(folder), "FOLDER"))


def forked(zygote: Zygote, why: str = "") -> Outcome:
    log = zygote.cwd / "log-0"
    log.unlink(missing_ok=True)
    sweep(zygote)
    _, status, spawned = zygote.run(set=RANK)
    assert spawned["how"] == ("exec" if why else "fork"), spawned["why"]
    assert why in spawned["why"]
    return comparable(log.read_text(errors="backslashreplace"), zygote.cwd), os.waitstatus_to_exitcode(status)


def sweep(zygote: Zygote) -> list[int]:
    zygote.send(op="sweep")
    killed: list[int] = zygote.wait("swept")["killed"]
    return killed


def write(folder: Path, source: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    script = folder / "probe.py"
    script.write_bytes(source.encode("utf-8", "surrogateescape"))
    return script


# ------------------------------------------------------------------------- one zygote with torch for all the probes


@pytest.fixture(scope="module")
def plain_outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What plain python makes of the chosen probes, two at a time."""
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    chosen: set[object] = {callspec.params.get("name") for callspec in callspecs if callspec}
    names = [name for name in PROBES if name in chosen]
    folders = [tmp_path_factory.mktemp("plain") for _ in names]
    for name, folder in zip(names, folders, strict=True):
        write(folder, PROBES[name])
    env, argv = environment(), [sys.executable, *ARGUMENTS]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(lambda folder: plain(argv, folder, env), folders), strict=True))


@pytest.fixture(scope="module")
def zygote(plain_outcomes: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    folder = tmp_path_factory.mktemp("forked")
    write(folder, "")
    with Zygote([sys.executable, *ARGUMENTS], folder, preload=TORCH, env=environment()) as zygote:
        ready = zygote.wait("ready")
        assert ready["failed"] == {}
        assert ready["poisoned"] == ""
        yield zygote


@pytest.mark.gang
@pytest.mark.torch
@pytest.mark.parametrize("name", PROBES)
def test_a_forked_rank_equals_plain_python(name: str, zygote: Zygote, plain_outcomes: dict[str, Outcome]) -> None:
    write(zygote.cwd, PROBES[name])
    output, status = forked(zygote)
    assert (output, status) == plain_outcomes[name]


@pytest.mark.gang
@pytest.mark.torch
def test_seeds_differ_between_ranks_as_between_plain_processes(zygote: Zygote) -> None:
    write(
        zygote.cwd,
        """
import multiprocessing, random, numpy, torch, uuid
print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), uuid.uuid4())
print(multiprocessing.current_process().authkey.hex())
""",
    )
    for rank in (1, 2):
        zygote.spawn(rank)
    for rank in (1, 2):
        assert zygote.wait("exit", rank=rank)["status"] == 0
    one, two = ((zygote.cwd / f"log-{rank}").read_text().split() for rank in (1, 2))
    assert len(one) == 6
    assert not set(one) & set(two)


@pytest.mark.gang
@pytest.mark.torch
def test_the_number_of_threads_is_the_ranks_own(zygote: Zygote) -> None:
    write(zygote.cwd, "import torch; print(torch.get_num_threads())")
    output, _, spawned = zygote.run(3, set={"OMP_NUM_THREADS": "2"})
    assert (output, spawned["how"]) == ("2\n", "fork")


@pytest.mark.gang
@pytest.mark.torch
def test_loader_workers_of_a_killed_rank_are_swept(zygote: Zygote) -> None:
    write(
        zygote.cwd,
        """
import os, time, torch.utils.data as d
class DS(d.Dataset):
    def __len__(s): return 1000
    def __getitem__(s, i): return i
if __name__ == "__main__":
    loader = iter(d.DataLoader(DS(), num_workers=2)); next(loader)
    open("workers", "w").write(" ".join(str(w.pid) for w in loader._workers))
    os.kill(os.getpid(), 9)
""",
    )
    _, status, _ = zygote.run(4)
    assert os.WTERMSIG(status) == signal.SIGKILL
    sweep(zygote)
    workers = (zygote.cwd / "workers").read_text().split()
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


# ------------------------------------------------------------------------------------------- other command lines


def assert_same(folder: Path, arguments: list[str], why: str = "", python: str = sys.executable, **extra: str) -> str:
    """Run the command plainly and through a zygote of its own in the same folder; returns the output."""
    env, argv = {**environment(), **extra}, [python, *arguments]
    expected = plain(argv, folder, env)
    with Zygote(argv, folder, preload=["json", "decimal"], env=env, python=python) as zygote:
        zygote.wait("ready")
        outcome = forked(zygote, why)
    assert outcome == expected
    return outcome[0]


SHOW = """
import sys, os
print(sys.argv, sys.path, __file__, __name__, __package__, __spec__ and __spec__.name, sys.flags, sys.warnoptions)
print(sys._xoptions, sys.orig_argv[1:], open("/proc/self/cmdline").read(), __debug__, sys.dont_write_bytecode)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.modules["__main__"].__dict__ is globals())
class C: pass
import pickle; print(type(pickle.loads(pickle.dumps(C()))) is C)
raise KeyError("end")
"""


@pytest.mark.gang
@pytest.mark.parametrize(
    "flags",
    [["-O"], ["-OO", "-B"], ["-W", "error"], ["-Werror::UserWarning"], ["-X", "dev"], ["-Xutf8"], ["-u"], ["-uB"],
     ["-bb", "-q"], ["-s"], ["-P"], ["-X", "faulthandler"]],
    ids=" ".join,
)  # fmt: skip
def test_interpreter_flags_hold_in_a_forked_rank(flags: list[str], tmp_path: Path) -> None:
    write(tmp_path, SHOW)
    assert_same(tmp_path, [*flags, "probe.py", "x"])


@pytest.mark.gang
@pytest.mark.parametrize(
    "variables",
    [{"PYTHONFAULTHANDLER": "1"}, {"PYTHONWARNINGS": "error"}, {"PYTHONSAFEPATH": "1"}, {"PYTHONHASHSEED": "0"},
     {"PYTHONPATH": "lib:/nowhere"}, {"PYTHONPATH": ""}, {"PYTHONDONTWRITEBYTECODE": "1"}],
    ids=str,
)  # fmt: skip
def test_pythons_own_variables_hold_in_a_forked_rank(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    write(tmp_path, SHOW + "import os; print(hash('a')); os.abort()")
    assert_same(tmp_path, ["probe.py", "x"], **variables)


@pytest.mark.gang
def test_a_module_with_relative_imports_runs_as_with_python_m(tmp_path: Path) -> None:
    write(tmp_path / "pkg", "")
    (tmp_path / "pkg" / "__init__.py").write_text("print('init', __name__)")
    (tmp_path / "pkg" / "x.py").write_text("v = 8")
    (tmp_path / "pkg" / "mod.py").write_text("from . import x; print(x.v)\n" + SHOW)
    (tmp_path / "pkg" / "__main__.py").write_text("from . import x; print(x.v)\n" + SHOW)
    assert "8" in assert_same(tmp_path, ["-m", "pkg.mod", "a"])
    assert "8" in assert_same(tmp_path, ["-um", "pkg", "a"])
    assert_same(tmp_path, ["-m", "pkg.missing"])


@pytest.mark.gang
def test_a_folder_and_a_zip_application_run_as_with_python(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "side.py").write_text("v = 9")
    (app / "__main__.py").write_text("import side; print(side.v)\n" + SHOW)
    assert "9" in assert_same(tmp_path, ["app", "a"])
    zipapp.create_archive(app, tmp_path / "packed.pyz")
    assert "9" in assert_same(tmp_path, ["packed.pyz", "a"])
    (app / "__main__.py").unlink()
    assert_same(tmp_path, ["app"])


@pytest.mark.gang
def test_spaces_and_links_in_the_scripts_path_change_nothing(tmp_path: Path) -> None:
    write(tmp_path / "my scripts", "import beside\n" + SHOW)
    (tmp_path / "my scripts" / "beside.py").write_text("")
    os.symlink(tmp_path / "my scripts" / "probe.py", tmp_path / "link.py")
    assert "KeyError" in assert_same(tmp_path, ["my scripts/probe.py", "a b"])
    assert "KeyError" in assert_same(tmp_path, ["link.py"])


@pytest.mark.gang
def test_a_missing_or_unreadable_script_gets_pythons_own_message(tmp_path: Path) -> None:
    assert "can't open file" in assert_same(tmp_path, ["nowhere.py"])
    write(tmp_path, "print('secret')").chmod(stat.S_IWUSR)
    assert_same(tmp_path, ["probe.py"])


@pytest.mark.gang
def test_a_module_of_the_users_that_hides_an_installed_one_is_the_one_that_runs(tmp_path: Path) -> None:
    (tmp_path / "decimal.py").write_text("print('mine', __name__)")
    write(tmp_path, "import decimal; print(decimal.__file__); import statistics")
    assert "mine" in assert_same(tmp_path, ["probe.py"])


@pytest.mark.gang
def test_an_installed_module_that_imports_one_of_the_users_is_not_imported_ahead(tmp_path: Path) -> None:
    (tmp_path / "decimal.py").write_text("print('mine', __name__); Decimal = int")
    write(tmp_path, "import fractions")
    argv, env = [sys.executable, "probe.py"], environment()
    expected = plain(argv, tmp_path, env)
    with Zygote(argv, tmp_path, preload=["fractions"], env=env) as zygote:
        assert zygote.wait("ready")["culprit"] == "fractions"
        assert forked(zygote, why="fractions imports decimal, which is the job's own module") == expected


@pytest.mark.gang
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("os.environ['OMP_NUM_THREADS'] = '3'", "sets OMP_NUM_THREADS"),
        ("os.environ.setdefault('TORCH_LOGS', 'x')", "sets TORCH_LOGS"),
        ("len(sys.argv) > 9 and os.execv(sys.executable, ['x'])", "replaces its own process"),
        ("sys.path.insert(0, 'lib')", "changes the front of sys.path"),
    ],
)
def test_what_cannot_be_forked_faithfully_is_started_afresh_and_says_why(line: str, why: str, tmp_path: Path) -> None:
    write(tmp_path, f"import os, sys\n{line}\n{SHOW}")
    assert_same(tmp_path, ["probe.py"], why)


@pytest.mark.gang
def test_a_script_that_execs_becomes_the_other_program(tmp_path: Path) -> None:
    write(tmp_path, "import os; os.execvp('sh', ['sh', '-c', 'echo $RANK; exit 6'])")
    assert assert_same(tmp_path, ["probe.py"], "replaces its own process") == "0\n"


@pytest.mark.gang
@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_keep_the_zygote_out_are_started_afresh(flag: str, tmp_path: Path) -> None:
    write(tmp_path, SHOW)
    assert_same(tmp_path, [flag, "probe.py"], f"python {flag}")


@pytest.mark.gang
def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text("import builtins; builtins.custom = __file__")
    write(tmp_path, "import sys; print(custom, sys.modules['sitecustomize'].__file__)")
    assert "lib/sitecustomize.py" in assert_same(tmp_path, ["probe.py"], PYTHONPATH="lib")
    (tmp_path / "lib" / "sitecustomize.py").write_text("1/0")
    write(tmp_path, "import sys; print('sitecustomize' in sys.modules)")
    expected = plain([sys.executable, "probe.py"], tmp_path, {**environment(), "PYTHONPATH": "lib"})
    assert "ZeroDivisionError" in expected[0]
