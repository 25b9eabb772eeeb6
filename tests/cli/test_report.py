"""``allranks report``: which run, which file, and what must not be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from allranks.cli import main
from tests.gangs.gang import RunningGang, cli

FAILS = """
import os, sys, time
print("<hello> of", os.environ["RANK"], flush=True)
time.sleep(3)
sys.exit(os.environ["RANK"] == "2")
"""


def test_an_unknown_run_is_named_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.call(["report", "nothing"]) == 69
    assert "no run named nothing" in capsys.readouterr().err


@pytest.mark.gang
def test_a_report_is_written_and_written_again_while_the_run_goes_on(tmp_path: Path) -> None:
    with RunningGang(tmp_path) as gang:
        gang.stepping(0)
        for _ in range(2):
            done = cli("report", "g", cwd=tmp_path)
            assert (done.returncode, done.stdout) == (0, "g.html\n"), done.stderr
        page = (tmp_path / "g.html").read_text()
        assert "<title>g: running</title>" in page
        assert "rank 3" in page
        assert cli("report", "g", "-o", "-").stdout.startswith("<!DOCTYPE html>")
        refused = cli("report", "g", "-o", "steps.py", cwd=tmp_path)
        assert refused.returncode == 2
        assert "steps.py is there and is no report; give another name: -o FILE" in refused.stderr
        for path, why in ((".", "it is a folder"), ("no/where.html", "there is no folder no")):
            assert why in cli("report", "g", "-o", path, cwd=tmp_path).stderr


@pytest.mark.gang
def test_the_report_of_a_run_has_its_cause_its_last_lines_and_its_memory(tmp_path: Path) -> None:
    with RunningGang(tmp_path, script=FAILS, detach=False) as gang:
        assert gang.process
        gang.process.communicate(timeout=60)
    page = cli("report", "g", "-o", "-").stdout
    assert "rank 2 on node 1: exited with code 1" in page
    assert "&lt;hello&gt; of 3" in page
    assert "<h2>Memory</h2>" in page
