from __future__ import annotations

import subprocess
import sys


def _loaded(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_package_alone_imports_no_library() -> None:
    assert not _loaded("allranks.spec") & {"pydantic", "ruamel", "ruamel.yaml"}


def test_a_job_from_the_command_line_needs_no_yaml_library() -> None:
    assert "ruamel.yaml" not in _loaded("allranks.spec.command, allranks.spec.write")


def test_words_for_errors_are_loaded_only_when_there_are_errors() -> None:
    assert "allranks.spec.wording" not in _loaded("allranks.spec.load")
