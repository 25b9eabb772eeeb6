"""Building what the cluster is made of, from Go modules, into ``BIN`` and ``MANIFESTS``; each version once.

Go's caches: the user's own (``go env GOCACHE GOMODCACHE``) when they are in use already, that is, hold a gigabyte or
more: they make it quick, and what is added there is what Go always adds. Otherwise caches of our own beside the
binaries, which are removed when all is built: the binaries are 1 GB, what Go keeps to make them 17.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tests.cluster import manifests
from tests.cluster.components import LIBRARIES, PAUSE, Component
from tests.cluster.errors import ClusterError, Unavailable
from tests.cluster.layout import BIN, HOME

COLD, WARM = 20, 4  # GB that a build needs, without and with the user's caches
OLDEST = (1, 25)  # Go, as the operators' go.mod ask for
SOURCES = HOME / "build"  # our go.mod files, logs and, while it builds, the caches
_GIGABYTE = 1 << 30
# k8s.io/kubernetes asks for these at v0.0.0 and replaces them by folders of its repository.
# fmt: off
_STAGING = [
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider",
    "cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api",
    "cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms",
    "kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics",
    "mount-utils", "pod-security-admission", "sample-apiserver",
]
# fmt: on


def build(components: Iterable[Component], say: Callable[[str], None]) -> None:
    """Build those that are not built, one after another: one `go build` keeps two cores busy."""
    missing = [component for component in components if not component.built]
    if not missing:
        return
    go = _Go.found()
    go.choose_caches()
    go.check_disk()
    say(f"building {', '.join(f'{one.name} {one.version}' for one in missing)}: half an hour on two cores, once")
    for number, component in enumerate(missing, 1):
        began = time.monotonic()
        go.build(component)
        seconds = time.monotonic() - began
        say(f"[{number}/{len(missing)}] {component.name} {component.version}: {seconds:.0f} s")
        with (SOURCES / "times.log").open("a") as log:
            log.write(f"{component.name} {component.version} {seconds:.1f} s {'warm' if go.warm else 'cold'}\n")
    go.remove_own_caches()


def why_no_go() -> str:
    """Why nothing can be built here; empty if it can."""
    try:
        _Go.found()
    except Unavailable as error:
        return str(error)
    return ""


class _Go:
    """A Go that can build it all."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        own = {"GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
        self._env = {**os.environ, **own}
        self.warm = True

    def choose_caches(self) -> None:
        """The user's if they are in use."""
        self.warm = all(_holds_a_gigabyte(Path(self._ask("env", name))) for name in ("GOCACHE", "GOMODCACHE"))
        if not self.warm:
            self._env |= {"GOCACHE": str(SOURCES / "cache"), "GOMODCACHE": str(SOURCES / "modules")}
            self._env["GOFLAGS"] += " -modcacherw"  # else only `go clean` can remove it

    @classmethod
    def found(cls) -> _Go:
        """The one on PATH, or where its installer puts it."""
        binary = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
        oldest = ".".join(map(str, OLDEST))
        if binary is None:
            raise Unavailable(
                f"Go is needed to build the cluster, {oldest} or newer; none is on PATH or in /usr/local/go/bin.\n"
                "Install it from https://go.dev/dl, then run this again."
            )
        version = subprocess.run([binary, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
        numbers = tuple(int(part) for part in version.strip().removeprefix("go").split(".")[:2] if part.isdigit())
        if numbers < OLDEST:
            raise Unavailable(f"Go {oldest} or newer is needed to build the cluster; {binary} is {version.strip()}.")
        return cls(binary)

    def check_disk(self) -> None:
        """Before half an hour is spent."""
        HOME.mkdir(parents=True, exist_ok=True)
        needed = WARM if self.warm else COLD
        free = shutil.disk_usage(HOME).free / _GIGABYTE
        if free < needed:
            raise Unavailable(
                f"Building the cluster needs {needed} GB free at {HOME}; {free:.1f} GB are.\n"
                "Free some, or name another place in ALLRANKS_CLUSTER_HOME."
            )

    def build(self, component: Component) -> None:
        """Its binaries and manifests, whole or not at all."""
        folder = SOURCES / component.name
        folder.mkdir(parents=True, exist_ok=True)
        BIN.mkdir(parents=True, exist_ok=True)
        where = folder if component is PAUSE or component.consumer else self._module(component)
        if component is PAUSE:
            shutil.copy(Path(__file__).with_name("pause.go"), folder)
            (folder / "go.mod").write_text("module pause\ngo 1.24\n")
        elif component.consumer:
            self._write_consumer(component, folder)
        for binary, package in component.packages.items():
            made = BIN / f".{binary}.part"
            flags = ["-p", "2", "-trimpath", *_ldflags(component), "-o", str(made)]
            self._run("build", *flags, *_package(component, package), where=where)
            made.rename(component.binary(binary))
        if component.crds:
            manifests.write(component, where)

    def remove_own_caches(self) -> None:
        """Only when all was built: what stopped half-way goes on from them."""
        for name in () if self.warm else ("cache", "modules"):
            shutil.rmtree(SOURCES / name, ignore_errors=True)

    def _module(self, component: Component) -> Path:
        """The module's folder in Go's cache; built there it has its own go.mod and go.sum unchanged.

        Not by `go install`, which also asks the proxy for the list of versions, and some proxies refuse that.
        """
        said = self._run("mod", "download", "-json", f"{component.module}@{component.version}", where=SOURCES)
        return Path(json.loads(said)["Dir"])

    def _write_consumer(self, component: Component, folder: Path) -> None:
        lines = ["module cluster", "go 1.24.0", f"require {component.module} {component.version}"]
        if component.module == "k8s.io/kubernetes":
            lines += [f"replace k8s.io/{name} => k8s.io/{name} {LIBRARIES}" for name in _STAGING]
        imports = "\n".join(f'import _ "{_join(component.module, package)}"' for package in component.packages.values())
        (folder / "go.mod").write_text("\n".join(lines) + "\n")
        (folder / "tools.go").write_text(f"//go:build tools\npackage cluster\n{imports}\n")
        self._run("mod", "tidy", where=folder)

    def _ask(self, *argv: str) -> str:
        return subprocess.run(
            [self._binary, *argv], capture_output=True, text=True, check=True, env=self._env
        ).stdout.strip()

    def _run(self, *argv: str, where: Path) -> str:
        done = subprocess.run(
            [self._binary, *argv], cwd=where, env=self._env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            words = (done.stderr or done.stdout).strip()[-3000:]
            raise ClusterError(f"`go {' '.join(argv[:2])}` in {where} ended with {done.returncode}:\n{words}")
        return done.stdout


def _ldflags(component: Component) -> list[str]:
    flags = "-s -w"
    if component.module == "k8s.io/kubernetes":
        major, minor, _ = component.version.removeprefix("v").split(".")
        own = "k8s.io/component-base/version"
        flags += f" -X {own}.gitVersion={component.version} -X {own}.gitMajor={major} -X {own}.gitMinor={minor}"
        flags += f" -X k8s.io/client-go/pkg/version.gitVersion={component.version}"
    return ["-ldflags", flags]


def _package(component: Component, package: str) -> list[str]:
    if component is PAUSE:
        return ["."]
    return [_join(component.module, package)] if component.consumer else ["-mod=readonly", package]


def _join(module: str, package: str) -> str:
    return f"{module}/{package}" if package else module


def _holds_a_gigabyte(cache: Path) -> bool:
    size = 0
    for folder, _, files in os.walk(cache):
        for file in files:
            with suppress(OSError):
                size += os.lstat(f"{folder}/{file}").st_size
        if size > _GIGABYTE:
            return True
    return False
