"""Which API server, as whom, and in which namespace: kubectl's rules.

The files of $KUBECONFIG, or ~/.kube/config, merged so that the first that says something wins; without any of them the
service account of the pod that this runs in.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.engines.kubernetes.wire import ANEW, LOG_IN, header
from allranks.errors import EngineError
from allranks.node.cause import moment

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_TIMEOUT = 60.0
"""Seconds for a credential plugin; some open a browser."""
SOON = 30.0
"""Seconds before its end from which a plugin's token is not used any more."""


NO_PEM = {
    "certificate-authority": "there is no certificate in PEM in it",
    "client-certificate": "it, or its client-key, is no PEM, or they do not belong together",
}

PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
TEXTS = (*PATHS, "certificate-authority-data", "client-certificate-data", "client-key-data", "server", "proxy-url",
         "tls-server-name", "token", "username", "password", "cluster", "user", "namespace")  # fmt: skip


class NoKubeconfig(EngineError):
    """Nothing says which cluster there is."""


@dataclass
class Access:
    """How to reach one cluster. ``context`` is what errors call it."""

    server: str
    namespace: str
    context: str
    cluster: Mapping[str, Any] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)
    _issued: dict[str, Any] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """What says who asks. Raises EngineError when a token cannot be had."""
        try:
            token = header(self._token(), "token")
        except ValueError as error:
            raise EngineError(f"context {self.context}: {error}") from error
        if token:
            return {"Authorization": f"Bearer {token}"}
        if self.user.get("username"):
            pair = f"{self.user['username']}:{self.user.get('password', '')}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def renew(self) -> None:
        """Forget what a plugin issued: the server does not take it any more."""
        self._issued.clear()

    def tls(self) -> ssl.SSLContext:
        """A context that trusts the cluster's authority and shows the client's certificate. Raises EngineError."""
        with (
            _file(self.cluster, "certificate-authority") as authority,
            self._usable("certificate-authority", authority),
        ):
            context = ssl.create_default_context(cafile=authority)
        if self.cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        issued = self._from_plugin()
        user = {**self.user, **{name: issued[name] for name in issued if name.startswith("client-")}}
        with (
            _file(user, "client-certificate") as certificate,
            _file(user, "client-key") as key,
            self._usable("client-certificate", certificate, key),
        ):
            if certificate:
                context.load_cert_chain(certificate, key)
        return context

    @property
    def proxy(self) -> str:
        """The proxy that the kubeconfig names for this cluster."""
        return str(self.cluster.get("proxy-url", ""))

    @property
    def server_name(self) -> str:
        """What the server's certificate is for, where that is not its address."""
        return str(self.cluster.get("tls-server-name", ""))

    @contextmanager
    def _usable(self, what: str, *files: str | None) -> Iterator[None]:
        """Say which certificate is none. Raises EngineError."""
        try:
            for file in filter(None, files):
                Path(file).read_bytes()
            yield
        except (OSError, ValueError) as error:
            unread = isinstance(error, OSError) and error.filename
            found = f"{error.strerror}: {error.filename}" if unread else NO_PEM[what]  # type: ignore[union-attr]
            raise EngineError(f"context {self.context}: its {what} cannot be used: {found}; {ANEW}") from error

    def _token(self) -> str:
        if self.user.get("tokenFile"):
            try:
                return Path(self.user["tokenFile"]).read_text().strip()
            except OSError as error:
                raise EngineError(f"context {self.context}: {error.strerror}: {error.filename}") from error
            except UnicodeDecodeError as error:
                file = self.user["tokenFile"]
                raise EngineError(f"context {self.context}: its token file is no text: {file}; {LOG_IN}") from error
        return str(self.user.get("token") or self._from_plugin().get("token", ""))

    def _from_plugin(self) -> Mapping[str, str]:
        """What the credential plugin gives; asked again when that has run out."""
        plugin = self.user.get("exec")
        if plugin and self._issued.get("until", 0.0) < time.time() + SOON:
            self._issued.update(_ask_plugin(plugin, self))
        return self._issued


def load(env: Mapping[str, str] = os.environ) -> Access:
    """Raises EngineError when there is no kubeconfig, or its context leads nowhere."""
    files = _files(env)
    found = [file for file in files if file.exists()]
    if found:
        return _chosen(_merged(found), ", ".join(map(str, found)))
    if env.get("KUBERNETES_SERVICE_HOST") and (ACCOUNT / "token").is_file():
        return _of_this_pod(env)
    looked = ", ".join(map(str, files))
    raise NoKubeconfig(f"no kubeconfig ({looked}: no such file); get one for your cluster, or set KUBECONFIG to it")


def _files(env: Mapping[str, str]) -> list[Path]:
    listed = [Path(name).expanduser() for name in env.get("KUBECONFIG", "").split(os.pathsep) if name]
    return listed or [Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"]


def _of_this_pod(env: Mapping[str, str]) -> Access:
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    namespace = (ACCOUNT / "namespace").read_text().strip()
    address = f"[{host}]" if ":" in host else host
    cluster = {"certificate-authority": str(ACCOUNT / "ca.crt")}
    return Access(f"https://{address}:{port}", namespace, "of this pod", cluster, {"tokenFile": ACCOUNT / "token"})


# The files


def _merged(files: list[Path]) -> dict[str, Any]:
    """One kubeconfig of several: the first that names something is the one that counts."""
    whole: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for file in files:
        read = _read(file)
        whole["current-context"] = whole["current-context"] or read.get("current-context", "")
        for plural in ("clusters", "users", "contexts"):
            for name, content in _entries(read.get(plural), f"the kubeconfig {file}: {plural}", plural[:-1]):
                whole[plural].setdefault(name, _absolute(content, file.parent))
    return whole


def _entries(listed: object, where: str, singular: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each entry's name and content. Raises EngineError for what is none."""
    if not isinstance(listed, list | None):
        raise EngineError(f"{where}: found {listed!r}, allowed is a list of entries with 'name' and {singular!r}")
    for entry in listed or ():
        content = entry.get(singular) or {} if isinstance(entry, dict) else None
        if not isinstance(content, dict):
            raise EngineError(f"{where}: found {entry!r}, allowed is an entry with 'name' and a mapping {singular!r}")
        _must_be_readable(content, f"{where}: {entry.get('name')}")
        yield str(entry.get("name")), content


def _must_be_readable(content: Mapping[str, Any], where: str) -> None:
    """Raises EngineError for what is no text, or no mapping, where kubeconfigs have one."""
    plugin = content.get("exec") or {}
    for name in TEXTS:
        if not isinstance(content.get(name) or "", str | int | float):
            raise EngineError(f"{where}: found {name} as a {type(content[name]).__name__}, allowed is text; {ANEW}")
    if not isinstance(plugin, dict):
        raise EngineError(f"{where}: found exec: {plugin!r}, allowed is a mapping with 'command'; {ANEW}")
    if not isinstance(plugin.get("args") or [], list) or not all(map(_is_variable, plugin.get("env") or ())):
        raise EngineError(f"{where}: exec: args is a list of words, and env one of entries with 'name' and 'value'; "
                          f"{ANEW}")  # fmt: skip


def _is_variable(entry: object) -> bool:
    return isinstance(entry, dict) and {"name", "value"} <= set(entry)


def _read(file: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        read = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"cannot read the kubeconfig {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        as_16 = "UTF-16, as PowerShell's '>' writes it" if error.object[:2] in UTF_16 else f"byte {error.start + 1}"
        raise EngineError(f"the kubeconfig {file} is not UTF-8 text ({as_16}); save it as UTF-8") from error
    except YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = "" if line is None else f" in line {line + 1}"
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise EngineError(f"the kubeconfig {file} is no YAML{place}: {said}; mend it, or {ANEW}") from error
    if not isinstance(read, dict):
        raise EngineError(f"the kubeconfig {file} is empty, or no mapping")
    return read


def _absolute(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths in a kubeconfig start from its own folder."""
    return {name: str(folder / str(value)) if name in PATHS and value else value for name, value in content.items()}


def _chosen(config: dict[str, Any], where: str) -> Access:
    name = config["current-context"]
    if not name:
        there = ", ".join(config["contexts"]) or "none"
        raise EngineError(f"the kubeconfig ({where}) has no current context; choose one with 'kubectl config "
                          f"use-context NAME'; there are: {there}")  # fmt: skip
    context = _named(config, "contexts", name, where)
    cluster = _named(config, "clusters", str(context.get("cluster", "")), where)
    user = _named(config, "users", str(context["user"]), where) if context.get("user") else {}
    server = str(cluster.get("server", ""))
    if not server.startswith(("https://", "http://")):
        raise EngineError(f"context {name} ({where}): its server is {server!r}, and must be an https:// address")
    if user.get("auth-provider"):
        raise EngineError(f"context {name} ({where}): auth-provider went out of use with Kubernetes 1.26; log in anew "
                          "with a tool that writes an exec credential plugin")  # fmt: skip
    return Access(server.rstrip("/"), str(context.get("namespace") or "default"), name, cluster, user)


def _named(config: dict[str, Any], plural: str, name: str, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = config[plural][name]
        return found
    except KeyError:
        there = ", ".join(config[plural]) or "none"
        raise EngineError(f"the kubeconfig ({where}) has no {plural[:-1]} {name!r}; there are: {there}") from None


@contextmanager
def _file(content: Mapping[str, Any], name: str) -> Iterator[str | None]:
    """The path of what a kubeconfig holds as a file, or as data: then in a file of our own for this moment."""
    data = str(content.get(f"{name}-data") or "")
    if not data:
        yield content.get(name)
        return
    with tempfile.NamedTemporaryFile(prefix="allranks-") as file:
        file.write(data.encode() if "-----" in data else _decoded(data, f"{name}-data"))
        file.flush()
        yield file.name


def _decoded(data: str, name: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except ValueError as error:
        raise EngineError(f"the kubeconfig's {name} is no base64 ({error}); {ANEW}") from error


# Credential plugins (client-go's exec: github.com/kubernetes/design-proposals-archive, auth/kubectl-exec-plugins.md)


def _ask_plugin(plugin: Mapping[str, Any], access: Access) -> dict[str, Any]:
    name = str(plugin.get("command", ""))
    added = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
    info = {
        "apiVersion": plugin.get("apiVersion", "client.authentication.k8s.io/v1"),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    try:
        asked = subprocess.run(
            [name, *map(str, plugin.get("args") or ())],
            env={**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLUGIN_TIMEOUT, check=True,
        )  # fmt: skip
        status = dict(json.loads(asked.stdout)["status"])
    except FileNotFoundError:
        hint = plugin.get("installHint") or f"install it, or put it on PATH: {name}"
        raise EngineError(f"context {access.context}: no credential plugin {name}; {hint}") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"])[-1]
        raise EngineError(f"context {access.context}: {name} gave no credentials: {said}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"context {access.context}: {name} gave no credentials: what it printed is no JSON with a "
                          "'status' (ExecCredential)") from error  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"context {access.context}: {name} gave no credentials: {error}") from error
    issued = {
        "token": str(status.get("token") or ""),
        "client-certificate-data": str(status.get("clientCertificateData") or ""),
        "client-key-data": str(status.get("clientKeyData") or ""),
        "until": _moment(str(status.get("expirationTimestamp") or "")),
    }
    return {name: value for name, value in issued.items() if value}


def _moment(text: str) -> float:
    try:
        return moment(text)
    except ValueError:
        return float("inf")
