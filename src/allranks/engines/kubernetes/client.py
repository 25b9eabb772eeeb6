"""One cluster's API server: objects in, objects out, logs as streams. Errors are for people.

urllib3 below, imported when the first cluster is asked for; see docs/decisions.md for why no Kubernetes client.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from allranks.engines.kubernetes import kubeconfig
from allranks.engines.kubernetes.kinds import POD, Kind, kind_of
from allranks.engines.kubernetes.kubeconfig import Access
from allranks.engines.kubernetes.refusals import Missing, Refused, Unreachable, refusal
from allranks.engines.kubernetes.wire import KEEPALIVE, answer, cause, is_page
from allranks.errors import EngineError, first_line

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

CONNECT, READ = 5.0, 30.0
"""Seconds to reach the API server, and until it must have begun to answer."""
CONNECTIONS = 64
AGAIN = (429, 502, 503, 504)
AWAY = AGAIN[1:]
"""What is answered in place of an API server that is not there; whether it did what was asked is not known."""

Object = dict[str, Any]


class Client:
    """Asks one API server as one user; may be used by several threads."""

    def __init__(self, access: Access) -> None:
        import urllib3
        from urllib3.connection import HTTPConnection

        self.access, self.namespace = access, access.namespace
        self._never_reached: Unreachable | None = None
        self._reached = False
        self._date = ""
        options: dict[str, Any] = {
            "num_pools": 2, "maxsize": CONNECTIONS, "block": False,
            "socket_options": [*HTTPConnection.default_socket_options, *KEEPALIVE],
        }  # fmt: skip
        if access.server.startswith("https"):
            options["ssl_context"] = access.tls()
            if access.server_name:
                options.update(server_hostname=access.server_name, assert_hostname=access.server_name)
        proxy = access.proxy
        try:
            self._pool = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise EngineError(
                f"context {access.context}: found {proxy!r} as its proxy-url, allowed is an address such as "
                "http://proxy.example:3128"
            ) from error

    # ---- objects

    def get(self, kind: Kind, name: str, namespace: str = "") -> Object:
        """Raises Missing, NotInstalled, Refused, Unreachable; so does all below."""
        return self._object("GET", "get", kind, namespace, name)

    def list(self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Object]:
        """All objects that have these labels, in one call however many there are.

        Each says its kind, as one that is asked for alone does: of its own kinds Kubernetes leaves that out of lists.
        """
        query = {"labelSelector": labels, "fieldSelector": fields}
        found: list[Object] = self._object("GET", "list", kind, namespace, query=query).get("items") or []
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **one} for one in found]

    def has_any(self, kind: Kind, namespace: str = "", *, labels: str = "") -> bool:
        """Whether there is an object with these labels: as quick for a thousand as for one."""
        query = {"labelSelector": labels, "limit": "1"}
        return bool(self._object("GET", "list", kind, namespace, query=query).get("items"))

    def create(self, document: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False) -> Object:
        """Make an object. A field that the installed version does not know is an error, not dropped."""
        query = {"fieldValidation": "Strict", "dryRun": "All" if dry_run else ""}
        name = str(document["metadata"]["name"])
        kind = kind_of(document)
        return self._object("POST", "create", kind, namespace, name, query=query, body=document, on_collection=True)

    def patch(self, kind: Kind, name: str, change: Mapping[str, Any], namespace: str = "") -> Object:
        """Merge a change into an object (RFC 7386)."""
        return self._object("PATCH", "patch", kind, namespace, name, body=change)

    def delete(self, kind: Kind, name: str, namespace: str = "", *, policy: str = "Background", uid: str = "") -> bool:
        """Delete an object, and by ``policy`` what it owns; whether there was one.

        With ``uid`` only that very one: another one of its name is none.
        """
        very = {"preconditions": {"uid": uid}} if uid else {}
        try:
            self._object("DELETE", "delete", kind, namespace, name, body={"propagationPolicy": policy, **very})
        except Missing:
            return False
        except Refused as refused:
            if uid and refused.why == "Conflict":
                return False
            raise
        return True

    def now(self) -> float:
        """The API server's clock when it last answered, in seconds since 1970; ours where it did not say."""
        return parsedate_to_datetime(self._date).timestamp() if self._date else time.time()

    def page(self, path: str, accept: str = "") -> Object:
        """What the API server says at a path that is no object's."""
        response = self._send("GET", path, query={}, accept=accept)
        return self._answer(response, "get", Kind("v1", path, path), "", "")

    # ---- logs

    @contextmanager
    def log(self, pod: str, namespace: str = "", **query: str) -> Iterator[BaseHTTPResponse]:
        """The container's output as an open response; it is closed on leaving."""
        kind = Kind("v1", "Pod", "pods/log")
        path = POD.path(namespace or self.namespace, pod, "log")
        response = self._send("GET", path, query=query, stream=True)
        try:
            if response.status >= 400:
                raise self._refusal(response.status, response.read(), "get", kind, namespace, pod)
            yield response
        finally:
            response.close()

    # ---- the wire

    def _object(
        self, method: str, verb: str, kind: Kind, namespace: str, name: str = "", *,
        query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None, on_collection: bool = False,
    ) -> Object:  # fmt: skip
        path = kind.path(namespace or self.namespace, "" if on_collection else quote(name))
        response = self._send(method, path, query=query or {}, body=body)
        if response.status == 401 and self.access.user.get("exec"):
            self.access.renew()
            response = self._send(method, path, query=query or {}, body=body)
        return self._answer(response, verb, kind, namespace, name)

    def _answer(self, response: BaseHTTPResponse, verb: str, kind: Kind, namespace: str, name: str) -> Object:
        if response.status >= 400 and not is_page(response.data):
            raise self._refusal(response.status, response.data, verb, kind, namespace, name)
        try:
            return answer(response.data, response.status, response.headers.get("Content-Type", ""))
        except ValueError as error:
            raise Unreachable(f"{self._where()} did not answer: {error}") from error

    def _refusal(self, code: int, body: bytes, verb: str, kind: Kind, namespace: str, name: str) -> EngineError:
        if code in AWAY:
            return self.unreachable(ConnectionError(f"{code} {body[:200].decode(errors='replace').strip()}"))
        return refusal(code, body, verb, kind, namespace or self.namespace, name, self.access.context)

    def _send(
        self, method: str, path: str, *, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
        stream: bool = False, accept: str = "",
    ) -> BaseHTTPResponse:  # fmt: skip
        import urllib3

        asked = urlencode({name: value for name, value in query.items() if value})
        change = "application/merge-patch+json" if method == "PATCH" else "application/json"
        again = urllib3.Retry(
            total=3, connect=1, redirect=0, status=3, backoff_factor=0.3, status_forcelist=AGAIN,
            allowed_methods=["GET"], raise_on_status=False,
        )  # fmt: skip
        if self._never_reached:
            raise self._never_reached  # it was not there a moment ago: nobody waits for it once for each engine
        try:
            response = self._pool.request(
                method,
                self.access.server + path + (f"?{asked}" if asked else ""),
                headers={"Content-Type": change, "Accept": accept or "application/json, */*", **self.access.headers()},
                body=None if body is None else json.dumps(body).encode(),
                timeout=urllib3.Timeout(connect=CONNECT, read=None if stream else READ),
                retries=again,
                preload_content=not stream,
            )
        except urllib3.exceptions.HTTPError as error:
            if not self._reached:
                self._never_reached = self.unreachable(error)
            raise self.unreachable(error) from error
        self._reached = True
        self._date = response.headers.get("Date", "")
        return response

    def unreachable(self, error: BaseException) -> Unreachable:
        """What to say when the line to the API server broke."""
        return Unreachable(f"{self._where('cannot be reached ')}: {cause(error)}")

    def _where(self, what: str = "") -> str:
        return f"the API server of context {self.access.context} {what}at {self.access.server}"


@functools.cache
def connect() -> Client:
    """The client of the current context, one for this process. Raises EngineError."""
    return Client(kubeconfig.load())


def why_not() -> str:
    """Why there is no cluster to ask; empty where a kubeconfig names one, even a broken one. Nothing is sent."""
    return _why_not(*(os.environ.get(name, "") for name in ("KUBECONFIG", "HOME", "KUBERNETES_SERVICE_HOST")))


@functools.lru_cache(maxsize=1)
def _why_not(*_: str) -> str:
    """Read once, for all engines that ask."""
    try:
        kubeconfig.load()
    except kubeconfig.NoKubeconfig as error:
        return first_line(error)
    except EngineError:
        return ""  # whoever asks it is told; a cluster that somebody has is not passed over in silence
    return ""
