"""How the zygote gets into the user's own interpreter: through site, before the interpreter runs the script.

The zygote is started as the user's command line, ``python train.py --epochs 3``, with this folder first on
PYTHONPATH. Here, while the interpreter still starts up, it imports, waits and forks. A forked rank returns from
here, and the interpreter goes on to run the script: so ``__main__``, sys.argv, sys.path, the stack, tracebacks,
exit codes and exit handlers are python's own work and not an imitation. The zygote itself never returns.
"""

import importlib
import json
import os
import sys
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))


def _enter() -> None:
    config = json.loads(os.environ.pop("ALLRANKS_ZYGOTE"))
    os.environ.pop("PYTHONPATH")
    if config["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = config["pythonpath"]
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")  # the one that this folder hides, where there is one
    except ImportError as error:
        if error.name != "sitecustomize":
            traceback.print_exc()
    sys.path.insert(0, config["home"])
    try:
        from allranks.node import zygote
    finally:
        sys.path.remove(config["home"])
    zygote.enter(config)


if "ALLRANKS_ZYGOTE" in os.environ:
    _enter()
    if "sitecustomize" not in sys.modules:
        raise ImportError("there is none", name="sitecustomize")  # as site expects where there is none
