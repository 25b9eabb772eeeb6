from __future__ import annotations

import pytest

from allranks.errors import UsageError
from allranks.spec.command import from_command, name_of
from allranks.spec.load import dump, parse


def test_a_command_line_makes_a_job_named_after_its_script() -> None:
    job = from_command(["python", "train.py", "--epochs", "3"], nodes=2, ranks=4)
    assert dump(job) == "kind: Job\nname: train\nnodes: 2\nranks_per_node: 4\nrun: python train.py --epochs 3\n"


def test_words_that_need_quotes_are_kept_as_a_list() -> None:
    job = from_command(["sh", "-c", "a && b", "|", ""])
    assert job.argv == ("sh", "-c", "a && b", "|", "")
    assert parse(dump(job)) == job


def test_further_fields_of_a_job_are_taken() -> None:
    assert from_command(["x"], name="mine", launcher="once", env={"A": "1"}).env == {"A": "1"}


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "train.py"], "train"),
        (["/usr/bin/python3.11", "-u", "dir/Train_Model.v2.py", "--x"], "train-model-v2"),
        (["python", "-m", "package.train"], "train"),
        (["python", "-m"], "python"),
        (["./2-fast.sh"], "fast"),
        (["uv", "run", "train.py"], "train"),
        (["/bin/true"], "true"),
        (["\u00e9"], "job"),
        (["a" * 50], "a" * 40),
        (["python", "-"], "python"),
    ],
)
def test_a_run_is_named_after_its_script_module_or_program(argv: list[str], name: str) -> None:
    assert name_of(argv) == name
    assert from_command(argv).name == name


def test_a_wrong_option_is_told_by_the_name_it_has_on_the_command_line() -> None:
    with pytest.raises(UsageError) as caught:
        from_command(["x"], nodes=0, ranks=0, name="A", launcher="torch", color=1)
    assert str(caught.value).splitlines() == [
        "--name: found 'A'; allowed are a-z, 0-9 and '-', first a letter, last no '-'",
        "--nodes: found 0; allowed is a whole number, 1 or more",
        "--ranks: found 0; allowed is a whole number, 1 or more",
        "--launcher: found 'torch'; allowed: native, torchrun, deepspeed, mpirun, once; did you mean 'torchrun'?",
        "unknown field 'color'; allowed: " + str(caught.value).rpartition("allowed: ")[2],
    ]


@pytest.mark.parametrize(
    ("argv", "told"), [([], "no command; write it after '--'"), ([""], "the command: found a list")]
)
def test_no_command_is_told_where_to_write_one(argv: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        from_command(argv)
