"""The API server of the gang's own cluster, asked as the pod's service account (``failure.force_delete``)."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, Dict, Mapping, Optional
from urllib.parse import quote

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts the pod's own token, its certificate authority and its namespace."""
BODIES = {"PATCH": "application/merge-patch+json"}
TIMEOUT = 5.0
LARGEST = 64 * 2**20


class Account:
    """Every call blocks, for TIMEOUT at most without an answer; raises OSError, ValueError."""

    def __init__(self, folder: str = ACCOUNT, env: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._host, self._port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")

    def of(self, plural: str) -> str:
        """The path of these objects of the pod's namespace."""
        return f"/api/v1/namespaces/{quote(self._read('namespace'))}/{plural}"

    def ask(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """What is answered; nothing where the object is not there, or is another one."""
        line = self._connect()
        try:
            headers = {
                "Authorization": f"Bearer {self._read('token')}",
                "Content-Type": BODIES.get(method, "application/json"),
            }
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            text = answer.read(LARGEST)
        except http.client.HTTPException as error:
            raise OSError(f"the API server broke the protocol: {error!r}") from error
        finally:
            line.close()
        if answer.status in (404, 409):
            return {}  # somebody else was quicker
        if answer.status >= 400:
            what = path.partition("/namespaces/")[2].partition("/")[2].partition("?")[0]
            raise OSError(f"the API server refused {method} of {what} ({answer.status}): {_message(text)}")
        found: Dict[str, Any] = json.loads(text)
        return found

    def _connect(self) -> http.client.HTTPConnection:
        import ssl  # some megabytes, for the few agents that come here

        trusted = ssl.create_default_context(cafile=os.path.join(self._folder, "ca.crt"))
        return http.client.HTTPSConnection(self._host, int(self._port), timeout=TIMEOUT, context=trusted)

    def _read(self, name: str) -> str:
        with open(os.path.join(self._folder, name), encoding="ascii") as file:
            return file.read().strip()


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return text[:300].decode(errors="replace")
