"""How our code gets into the user's own interpreter: through site, before the interpreter runs the script.

This folder is first on PYTHONPATH of two kinds of processes, which the environment tells apart.

The zygote is started as the user's command line, ``python train.py --epochs 3``. Here, while the interpreter still
starts up, it imports, waits and forks. A forked rank returns from here, and the interpreter goes on to run the script:
so ``__main__``, sys.argv, sys.path, the stack, tracebacks, exit codes and exit handlers are python's own work and not
an imitation. The zygote itself never returns.

A rank that was not forked starts the watching thread (``watch/inside.py``) and goes on.
"""

import importlib
import json
import os
import sys
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _step_aside() -> None:
    """Let the sitecustomize run that this folder hides, where there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            traceback.print_exc()


def _be_zygote() -> None:
    config = json.loads(os.environ.pop("ALLRANKS_ZYGOTE"))
    os.environ.pop("PYTHONPATH")
    if config["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = config["pythonpath"]
    _step_aside()
    sys.path.insert(0, config["home"])
    try:
        from allranks.node.fork import zygote
    finally:
        sys.path.remove(config["home"])
    zygote.enter(config)


def _be_rank() -> None:
    _step_aside()
    if not {"RANK", "ALLRANKS_WATCH"} <= os.environ.keys():
        return
    sys.path.insert(0, _HOME)
    try:
        from allranks.node.watch import inside
    finally:
        sys.path.remove(_HOME)
    inside.start(os.environ)
    for name in [name for name in sys.modules if name == "allranks" or name.startswith("allranks.")]:
        del sys.modules[name]  # a job may have another allranks installed, or none


if "ALLRANKS_ZYGOTE" in os.environ:
    _be_zygote()
else:
    _be_rank()
if "sitecustomize" not in sys.modules:
    sys.modules["sitecustomize"] = sys  # for the import that fails now to take away: zipimport of Python 3.9 insists
    raise ImportError("there is none", name="sitecustomize")  # as site expects where there is none
