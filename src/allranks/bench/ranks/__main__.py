"""One rank of a bench: ``python -m allranks.bench.ranks WISHES``, WISHES being one JSON object.

Rank 0 prints a line of JSON for all that is to be known; any engine that keeps logs can carry that.
"""

from __future__ import annotations

import sys

from allranks.bench.ranks.tell import Wishes

if __name__ == "__main__":
    wishes = Wishes.parse(sys.argv[1])
    if wishes.rounds:
        from allranks.bench.ranks.rounds import run
    else:
        from allranks.bench.ranks.sweep import run
    sys.exit(run(wishes))
