"""What a service's door knows, told from inside its Ray cluster: ``python3 -m allranks.engines.ray.tell NAME``.

The client runs it in the head's container, as whoever may do that there. It prints the door's state as one line of
JSON with all lines, or those from ``--since NUMBER`` on; with ``--follow`` every second, each with the lines that came
meanwhile, until its input ends. Exit code 1 where the door does not answer.
"""

from __future__ import annotations

import json
import select
import sys

import ray
from ray import serve

from allranks.engines.ray.driver import ANSWER
from allranks.engines.ray.said import said

EVERY = 1.0


def main(argv: list[str]) -> int:
    """Tell of the service named first."""
    name, follow = argv[0], "--follow" in argv
    since = int(argv[argv.index("--since") + 1]) if "--since" in argv else 0
    ray.init("auto", namespace="allranks", logging_level="ERROR", log_to_driver=False)
    handle = serve.get_deployment_handle("door", name)
    while True:
        try:
            state = handle.state.remote(since).result(timeout_s=ANSWER)
            if state["next"] < since:  # another door than the one that had counted so far
                state = handle.state.remote(0).result(timeout_s=ANSWER)
        except Exception as error:  # noqa: BLE001 - whatever Ray says is all that can be said
            print(f"the door of {name} does not answer: {said(error)}", file=sys.stderr)
            return 1
        since = state["next"]
        print(json.dumps({key: state[key] for key in ("status", "serves", "lines", "next")}), flush=True)
        if not follow or select.select([sys.stdin], [], [], EVERY)[0]:
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
