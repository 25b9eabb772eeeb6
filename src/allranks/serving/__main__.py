"""``python -m allranks.serving --model FOLDER ...``: what every rank of a serving gang runs."""

from __future__ import annotations

import signal
import sys

from allranks.serving.folder import UNFIT, in_one_line
from allranks.serving.options import parse


def main() -> None:
    """Serve until told to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of wherever it was
    options = parse(sys.argv[1:])
    try:
        _quiet()
        from allranks.serving.engine import run
    except ModuleNotFoundError as error:
        print(f"serving: {error}; install it where the ranks run: pip install 'allranks[serve]'", file=sys.stderr)
        sys.exit(UNFIT)
    except (ImportError, MemoryError) as error:  # another start would meet the same
        why = "is memory limited (ulimit -v), or the installation damaged?"
        print(f"serving: {type(error).__name__}: {in_one_line(error)}; {why}", file=sys.stderr)
        sys.exit(UNFIT)
    run(options)


def _quiet() -> None:
    """Libraries' progress bars and advice would stand between what the ranks have to say."""
    import logging
    import warnings

    warnings.filterwarnings("ignore", module=r"(torch|transformers|deepspeed)\b")
    loop = logging.getLogger("ContinuousBatchingLogger")
    loop.setLevel(logging.ERROR)
    loop.addFilter(lambda record: not record.getMessage().startswith("Error in generation loop"))  # engine tells it
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    main()
