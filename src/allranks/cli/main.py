"""The command line's entry: finds the verb, and turns whatever goes wrong into one message and an exit code.

Nothing heavy is imported before a verb is chosen: ``allranks --help`` is quick because of it.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from allranks import __version__
from allranks.errors import Error

if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

EXIT_BROKE = 70
EXIT_IO = 74
EXIT_INTERRUPTED = 130
EXIT_PIPE = 141
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

VERBS = {
    "run": "start a gang and follow it to its end",
    "plan": "show what would be started, and what is not honoured",
    "list": "list the runs, newest first",
    "status": "tell how a run is doing, rank by rank, and why it broke",
    "logs": "show what the ranks printed",
    "report": "write a page about a run: what broke it, evidence, memory, output",
    "up": "start an idle gang, for exec and shell",
    "exec": "run a command on all ranks of an idle gang",
    "shell": "open a terminal on one node of a gang",
    "serve": "serve one model with a gang: OpenAI's API on node 0",
    "cancel": "end a run and everything that belongs to it",
    "fabric": "tell what NCCL will use of the network here",
    "doctor": "tell what is wrong with this host, or with a gang's nodes",
    "bench": "measure a gang's collectives, and say what they are good for",
    "convert": "make a spec of an MPIJob, TrainJob, hostfile, runai line ...",
    "lint": "find mistakes in hand-written manifests and hostfiles",
    "init": "write a commented spec to start from",
    "engines": "list where a gang can run",
}
"""Each verb is a module of its own; what it does is said here too, so that help need not import it."""


class Verbs(click.Group):
    """The verbs, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a verb's module and return its command; None when there is no such verb."""
        if name not in VERBS:
            return None
        command: click.Command = import_module(f"allranks.cli.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest verb when somebody mistypes one, and the way to run a script when it is one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(f"no such command: {args[0]}{_meant(args[0])}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table above."""
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _meant(word: str) -> str:
    from difflib import get_close_matches

    if word.endswith((".yaml", ".yml")):
        return f"; did you mean: allranks run {word}"
    if word.endswith(".py") or word in ("python", "python3"):
        return "; did you mean: allranks run -- python SCRIPT"
    near = get_close_matches(word, VERBS, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _show_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if not shell or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    if completion is not None:
        click.echo(completion(allranks, {}, "allranks", "_ALLRANKS_COMPLETE").source())
    ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--show-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    expose_value=False,
    is_eager=True,
    callback=_show_completion,
    metavar="SHELL",
    help="Print what bash, zsh or fish is to eval.",
)
def allranks() -> None:
    """A gang of ranks starts together, restarts together, and names who broke it.

    \b
    allranks run --nodes 2 --ranks 2 -- python train.py
    allranks init && allranks run job.yaml
    """


def main() -> None:
    """Run the command line of this process and exit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on ``call`` answers it
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    _open_streams()
    sys.exit(call(sys.argv[1:]))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """End by a signal, but undo what was begun."""
    sys.exit(128 + number)


def call(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. Whatever goes wrong is said in one message on stderr."""
    try:
        code = allranks.main(list(argv), prog_name="allranks", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return _usage(error)
    except Error as error:
        _say(f"allranks: {error}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:  # what no verb foresaw: a full disk below stdout, a current folder that was deleted
        _say(f"allranks: {_blamed(error)}")
        _discard_output()
        return EXIT_IO
    except SystemExit as stop:  # click's own way out when nobody reads its output any more
        return _broken_pipe() if stop.code == 1 else int(stop.code or 0)
    except Exception as error:  # noqa: BLE001 - the last rim: a person gets one line, the traceback goes to a file
        _say(f"allranks broke: {type(error).__name__}: {error}; please report this with {_save_traceback()}")
        return EXIT_BROKE


def _blamed(error: OSError) -> str:
    """Name what a system call failed on: its file, or else one of the two that are used without a name."""
    why = error.strerror or str(error)
    if error.filename:
        return f"{why}: {error.filename}"
    try:
        os.getcwd()
    except OSError:
        return f"the current folder is gone ({why}); change to one that is there"
    return f"cannot write to standard output: {why}" if error.errno in UNWRITABLE else why


def _usage(error: click.ClickException) -> int:
    message = error.format_message()
    _say(f"allranks: {message[:1].lower()}{message[1:]}")
    context = getattr(error, "ctx", None)
    if context is not None:
        _say(f"Try '{context.command_path} --help'.")
    return error.exit_code


def _say(message: str) -> None:
    try:
        click.echo(message, err=True)
    except OSError:
        pass  # nobody listens; the exit code still tells


def _open_streams() -> None:
    """Where the caller closed a standard stream, write into nothing: a descriptor of ours must not take its place.

    What a stream's encoding lacks is written with backslashes.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what ranks say need not fit the locale


def _broken_pipe() -> int:
    """Be quiet, also when the interpreter flushes its output at the end."""
    _discard_output()
    return EXIT_PIPE


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save_traceback() -> str:
    """Write the traceback where it can be found; where nothing can be written, return it instead of its path."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="allranks-broke-", suffix=".txt", delete=False) as file:
            file.write(f"allranks {__version__}, Python {sys.version}\n{sys.argv}\n\n{traceback.format_exc()}")
        return file.name
    except OSError:
        return f"this traceback:\n{traceback.format_exc()}"
