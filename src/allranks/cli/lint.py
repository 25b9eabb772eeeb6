"""``allranks lint``: mistakes in hand-written manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from allranks.cli import output as out
from allranks.cli.words import counted
from allranks.errors import SpecError, UsageError

if TYPE_CHECKING:
    from allranks.lint.files import Finding

EXIT_ERRORS = 1


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--trainer", metavar="VERSION", help="Version of Kubeflow Trainer there, such as 2.1.")
@click.option("--crd", multiple=True, metavar="FILE", help="A CRD as installed; its fields are the known ones.")
@click.option("--rules", is_flag=True, help="List the rules.")
@out.output_option("json", "yaml")
def command(files: tuple[str, ...], trainer: str | None, crd: tuple[str, ...], rules: bool, output: str | None) -> int:
    """Find mistakes in manifests, hostfiles and specs; - is stdin.

    MPIJob, PyTorchJob, TrainJob and its runtimes, JobSet, Job. Each mistake is
    told with its place, why it matters, and what to write instead.

    Exits with 0 when none is an error, 1 when one is, 65 when something could
    not be read.
    """
    if rules:
        _list_rules(output)
        return 0
    if not files:
        raise UsageError("nothing to lint: name files, or '-' for standard input")
    findings, unread = _linted(files, _version(trainer), crd)
    if output:
        out.write({"findings": [vars(one) for one in findings], "unread": unread}, output)
    else:
        _tell(findings)
    for line in unread:
        click.echo(line, err=True)
    return SpecError.exit_code if unread else EXIT_ERRORS if any(one.severity == "error" for one in findings) else 0


def _linted(files: tuple[str, ...], trainer: tuple[int, ...], crd: tuple[str, ...]) -> tuple[list[Finding], list[str]]:
    from allranks.lint.files import crd_shapes, lint
    from allranks.manifest.read import text_of

    schemas: dict[str, object] = {}
    for file in crd:
        schemas |= crd_shapes(text_of(file), file)
    findings: list[Finding] = []
    unread: list[str] = []
    empty: list[str] = []
    for file in files:
        try:
            text = text_of(file)
        except SpecError as error:
            unread.append(str(error))
            continue
        linted = lint(text, "<stdin>" if file == "-" else file, trainer, schemas)
        findings += linted.findings
        unread += linted.unread
        empty += [linted.nothing] if linted.nothing else []
    if len(empty) == len(files):  # among others, a file without a gang is none of ours
        unread += empty
    return findings, unread


def _version(text: str | None) -> tuple[int, ...]:
    import re

    if text is None:
        return ()
    if not (found := re.fullmatch(r"v?(\d{1,3})\.(\d{1,3})(\.\d+)?", text)):
        raise UsageError(f"--trainer {text}: allowed is a version such as 2.1")
    return int(found[1]), int(found[2])


def _tell(findings: list[Finding]) -> None:
    for one in findings:
        click.echo(f"{one.file}:{one.line}:{one.column}: {one.severity}: {one.what}  [{one.rule}]")
        click.echo(f"    why: {one.why}\n    fix: {one.fix}")
    errors = sum(one.severity == "error" for one in findings)
    if findings:
        click.echo(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")


def _list_rules(output: str | None) -> None:
    from allranks.lint.files import RULES

    if output:
        rows = [{"name": one.name, "severity": one.severity, "kinds": list(one.kinds), "why": one.why} for one in RULES]
        out.write(rows, output)
        return
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        click.echo(f"{rule.name:<{width}}  {rule.severity:<7}  {rule.why}")
