"""What a service says at a path such as /ready. Standard library only: the command line asks it too."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request


def origin(host: str, port: int) -> str:
    """Where somebody answers: the start of an URL, an address of IPv6 in brackets (RFC 3986, 3.2.2)."""
    bare = host.strip("[]")
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def answers(url: str, timeout: float = 1.0) -> bool:
    """Whether there is a 200 at that URL within so many seconds."""
    return status_of(url, timeout) == 200


def status_of(url: str, timeout: float = 1.0) -> int | None:
    """The status of an answer, 0 where there is nobody; None where it takes over ``timeout`` s: it may only be busy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to a gang
    try:
        with opener.open(url, timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        return None if isinstance(getattr(error, "reason", error), TimeoutError) else 0
