"""Launch commands are taken apart, or kept whole with the reason."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.manifest.launch import Launch, glimpse, take_apart

# The command, then what is said of it: launcher, ranks' words, ranks, ranks of each node.
CASES = [
    ("python train.py --lr 0.1", "native", "python train.py --lr 0.1", None, None),
    ("mpirun -np 4 python train.py --deepspeed_mpi", "mpirun", "python train.py --deepspeed_mpi", 4, None),
    ("mpirun -n 8 -N 4 -mca btl ^openib --bind-to none python t.py", "mpirun", "python t.py", 8, 4),
    ("mpirun --map-by ppr:2:node -x A=b -x PATH ./train", "mpirun", "./train", None, 2),
    ("mpiexec.hydra -n 4 -ppn 2 -genv A b -f hosts ./train", "mpirun", "./train", 4, 2),
    ("mpirun -np 2 -N 1 torchrun --nproc_per_node=8 t.py", "torchrun", "python t.py", 2, 8),
    ("torchrun --nnodes=2 --nproc-per-node 4 -m pkg.train --x", "torchrun", "python -m pkg.train --x", None, 4),
    ("torchrun --no-python --nproc_per_node=gpu ./run.sh", "torchrun", "./run.sh", None, None),
    ("python -m torch.distributed.launch --use_env t.py", "torchrun", "python t.py", None, None),
    ("deepspeed --hostfile=h --num_gpus 2 t.py --deepspeed", "deepspeed", "python t.py --deepspeed", None, 2),
    ("bash -lc 'cd /src && export A=1; exec python t.py'", "native", "python t.py", None, None),
    ("env A=b nohup bash -euo pipefail -c 'torchrun t.py'", "torchrun", "python t.py", None, None),
]


@pytest.mark.parametrize(("line", "launcher", "run", "ranks", "per_node"), CASES, ids=[case[0] for case in CASES])
def test_a_known_launch_command_is_taken_apart(
    line: str, launcher: str, run: str, ranks: int | None, per_node: int | None
) -> None:
    launch = take_apart(shlex.split(line))
    assert (launch.doubt, launch.launcher, shlex.join(launch.argv)) == ("", launcher, run)
    assert (launch.ranks, launch.per_node) == (ranks, per_node)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("accelerate launch t.py", "accelerate starts ranks in its own way"),
        ("mpirun -np 2 a : -np 2 b", "several programs"),
        ("mpirun --no-such-option x python t.py", "--no-such-option is not known"),
        ("bash -c 'python t.py | tee log'", "redirected, piped or in the background"),
        ("bash -c 'for i in 1 2; do echo $i; done; python t.py'", "'for'"),
        ("bash -c 'python t.py || true'", "'||'"),
        ("bash -c '(python t.py)'", "'('"),
        ('bash -c "echo \'open"', "'open"),
        ("torchrun --nproc-per-node 2", "without a command"),
        ("bash -c", "no command"),
    ],
)
def test_a_command_in_doubt_is_kept_whole_with_the_reason(line: str, reason: str) -> None:
    words = tuple(shlex.split(line)) if "'open" not in line else ("bash", "-c", "echo 'open")
    launch = take_apart(words)
    if line == "bash -c":
        assert launch.run == words
        return
    assert reason in launch.doubt
    assert launch.run == words


def test_what_only_a_shell_can_put_in_stays_with_a_shell() -> None:
    launch = take_apart(["sh", "-c", "export X=$(nproc); torchrun --nnodes=$PET_NNODES t.py --out $HOME/x 'a b' '$no'"])
    assert launch.argv == ("bash", "-c", "exec python t.py --out $HOME/x 'a b' '$no'")
    assert launch.before == ["export X=$(nproc)"]


@pytest.mark.parametrize("part", ['"$(', '"$(a)', "${", "{,", "'", '"$', "$(("])
def test_long_nonsense_is_refused_quickly(part: str) -> None:
    began = time.monotonic()
    take_apart(["bash", "-c", "python t.py " + part * (16_000 // len(part))])
    assert time.monotonic() - began < 20  # it is a fraction of a second


@pytest.mark.parametrize("word", ["\"it's $HOME isn't\"", "a{1,2}", "*.py", "~/x", "`date`", '"`date`"'])
def test_a_word_that_a_shell_would_change_is_left_to_it(word: str) -> None:
    assert take_apart(["sh", "-c", f"python t.py {word}"]).argv == ("bash", "-c", f"exec python t.py {word}")


@pytest.mark.parametrize("word", ["'$HOME'", '"a b"', "\\$x", '"\\$x"', "{}", "'*'"])
def test_a_word_that_is_quoted_is_a_word(word: str) -> None:
    assert take_apart(["sh", "-c", f"python t.py {word}"]).argv == ("python", "t.py", *shlex.split(word))


def test_variables_that_kubernetes_puts_in_become_a_shells() -> None:
    assert take_apart(["python", "t.py", "--seed=$(SEED)"]).argv == ("bash", "-c", 'exec python t.py --seed="${SEED}"')


def test_what_ranks_are_told_anyway_is_not_carried_as_environment() -> None:
    launch = take_apart(
        ["bash", "-c", "export MASTER_ADDR=$(head -1 /etc/mpi/hostfile); mpirun -x MASTER_ADDR -np 2 x"]
    )
    assert (launch.env, launch.passed) == ({}, ["MASTER_ADDR"])
    assert "allranks sets" in launch.lost[0][1]


def test_a_launcher_is_glimpsed_within_a_script_that_is_kept_whole() -> None:
    script = (
        "until getent hosts w; do sleep 1; done\nmpirun -np 4 \\\n  --hostfile /etc/mpi/hostfile python t.py | tee log"
    )
    assert take_apart(["sh", "-c", script]).doubt
    seen = glimpse(["sh", "-c", script])
    assert (seen.launcher, seen.ranks, seen.hostfile) == ("mpirun", 4, "/etc/mpi/hostfile")


WORD = st.one_of(
    st.sampled_from(
        ["mpirun", "torchrun", "deepspeed", "python", "-m", "-np", "--nnodes=2", "-x", "A=b", "bash", "-c", "env", ":"]
    ),
    st.text("ab$(){}'\"\\;|&<># \n`=-*~", max_size=12),
)


@given(st.lists(WORD, max_size=8))
@settings(deadline=None)
def test_no_command_breaks_it(argv: list[str]) -> None:
    for launch in (take_apart(argv), glimpse(argv)):
        assert isinstance(launch, Launch)
