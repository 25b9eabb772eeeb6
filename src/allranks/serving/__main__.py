"""``python -m allranks.serving --model FOLDER ...``: what every rank of a serving gang runs."""

from __future__ import annotations

import os
import sys

from allranks.serving.options import parse


def main() -> None:
    """Serve until told to end."""
    options = parse(sys.argv[1:])
    os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")  # before the process group: costs speed otherwise
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _quiet()
    from allranks.serving.engine import Rank, told

    with told():
        Rank(options).serve()


def _quiet() -> None:
    """Libraries' progress bars and advice would stand between what the ranks have to say."""
    import logging
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", module=r"(torch|transformers|deepspeed)\b")
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    main()
