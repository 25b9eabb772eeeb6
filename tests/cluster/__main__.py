"""``python -m tests.cluster up``: a real Kubernetes with the real operators on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tests.cluster import boot, status, world
from tests.cluster.build import build
from tests.cluster.cluster import Cluster
from tests.cluster.components import K8S, TRAINERS, everything, needed
from tests.cluster.errors import ClusterError, NotRunning, Unavailable
from tests.cluster.layout import KUBECONFIG, RUN
from tests.cluster.machine import alone, why_not

UNAVAILABLE = 69


def main() -> int:
    args = _parser().parse_args()
    try:
        return int(VERBS[args.verb](args))
    except (ClusterError, OSError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        return 130


def _up(args: argparse.Namespace) -> int:
    unable = why_not(args.trainer)
    if unable:
        raise Unavailable(unable)
    with alone("up", _say):
        if _is_up(args):
            return 0
        if world.remnants():
            _say("removing what an earlier run has left")
            boot.down()
        build(needed(args.trainer), _say)
        try:
            boot.up(args.nodes, args.trainer, _say)
        except BaseException:
            kept = _keep_logs()
            boot.down()
            _say(f"the boot failed; its logs are in {kept}")
            raise
    _say(f"export KUBECONFIG={KUBECONFIG}")
    return 0


def _is_up(args: argparse.Namespace) -> bool:
    try:
        cluster = Cluster.running()
    except NotRunning:
        return False
    if (cluster.trainer, len(cluster.nodes)) != (args.trainer, args.nodes):
        raise Unavailable(
            f"A cluster of {len(cluster.nodes)} nodes with trainer {cluster.trainer} is up. "
            "`make cluster-down` ends it; then run this again."
        )
    _say(f"it is up already: {', '.join(cluster.nodes)}, trainer {cluster.trainer}")
    return True


def _keep_logs() -> Path:
    kept = RUN.with_name("failed")
    shutil.rmtree(kept, ignore_errors=True)
    if (RUN / "log").exists():
        shutil.copytree(RUN / "log", kept)
    return kept


def _down(args: argparse.Namespace) -> int:
    with alone("down", _say):
        boot.down()
    return 0


def _build(args: argparse.Namespace) -> int:
    with alone("build", _say):
        build(everything() if args.all else needed(args.trainer), _say)
    return 0


def _check(args: argparse.Namespace) -> int:
    unable = why_not()
    print(unable or "a cluster can be had here")
    return UNAVAILABLE if unable else 0


def _status(args: argparse.Namespace) -> int:
    print(status.report())
    return 0


def _kubectl(args: argparse.Namespace) -> int:
    Cluster.running()
    binary = str(K8S.binary("kubectl"))
    os.execv(binary, [binary, f"--kubeconfig={KUBECONFIG}", *args.argv])


def _exec(args: argparse.Namespace) -> int:
    argv = Cluster.running().node(args.node).init.inside(*(args.argv or ["bash"]))
    os.execvp(argv[0], argv)


def _import(args: argparse.Namespace) -> int:
    Cluster.running().import_image(args.archive)
    return 0


def _say(line: str) -> None:
    print(f"cluster: {line}", flush=True)


VERBS = {
    "up": _up,
    "down": _down,
    "build": _build,
    "check": _check,
    "status": _status,
    "kubectl": _kubectl,
    "exec": _exec,
    "import": _import,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser("up", help="build what is missing and boot; nothing to do when it is up")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--trainer", choices=sorted(TRAINERS), default="2.2", help="which version of Kubeflow Trainer")
    verbs.add_parser("down", help="end it, and leave nothing but what was built")
    building = verbs.add_parser("build", help="build what is missing")
    building.add_argument("--all", action="store_true", help="all versions of the trainer")
    building.add_argument("--trainer", choices=sorted(TRAINERS), default="2.2")
    verbs.add_parser("check", help="whether this machine can have a cluster, and why not")
    verbs.add_parser("status", help="what is up, and why not")
    kubectl = verbs.add_parser("kubectl", help="as the admin", add_help=False, prefix_chars="\0")
    kubectl.add_argument("argv", nargs=argparse.REMAINDER)
    inside = verbs.add_parser(
        "exec", help="run a command inside a node's namespaces", prefix_chars="\0", add_help=False
    )
    inside.add_argument("node")
    inside.add_argument("argv", nargs=argparse.REMAINDER)
    load = verbs.add_parser("import", help="load an image tar into every node")
    load.add_argument("archive", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
