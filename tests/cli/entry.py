"""The command line as a process of its own, with the stand-in as its runs' supervisor."""

from __future__ import annotations

from pathlib import Path

from allranks.cli.main import main
from allranks.engines.local import control

control.SUPERVISOR = Path(__file__).parents[1] / "engines" / "local" / "supervisor.py"

if __name__ == "__main__":
    main()
