"""The program ``allranks``. Ctrl-C while its modules load ends it without a traceback."""

import signal


def main() -> None:
    """Run the command line of this process and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where the shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from allranks.cli.main import main

    main()


if __name__ == "__main__":
    main()
