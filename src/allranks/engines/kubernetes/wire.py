"""Why an API server could not be asked, or what answered is none: what was found, and the way out."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

ANEW = "get the kubeconfig of this cluster anew"
LOG_IN = "log in anew, as for kubectl"
# What the TLS library says, and what a person needs to hear.
TLS = {
    "certificate has expired": "its certificate has expired; its administrator renews it, or this machine's clock is "
    "wrong",
    "certificate is not yet valid": "its certificate is not valid yet; is this machine's clock right?",
    "certificate is not valid for": "its certificate is for another name{}; write the name that it has into 'server:', "
    "or set tls-server-name",
    "CERTIFICATE_VERIFY_FAILED": f"its certificate is not of the authority that the kubeconfig trusts{{}}; {ANEW}",
    "WRONG_VERSION_NUMBER": "what is there does not speak TLS; is the port right, or is it http:// that 'server:' must "
    "begin with?",
    "HTTP_REQUEST": "it speaks TLS, and 'server:' begins with http://; write https://",
    "RemoteDisconnected": "it closed the line without an answer; does 'server:' begin with https://, and is the port "
    "right?",
    "EOF occurred in violation": f"it broke off the TLS handshake; either it does not take the client certificate "
    f"({LOG_IN}), or something between here and there breaks lines",
    "_ALERT_": f"it does not take the client certificate{{}}; it may have expired, or be another cluster's: {LOG_IN}",
    "CERTIFICATE_REQUIRED": f"it wants a client certificate, and the kubeconfig has none; {ANEW}",
}  # fmt: skip
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]  # fmt: skip
"""Of every line to an API server: one that is read for hours is known to be cut after 30 s, and not for idleness."""
TITLE = re.compile(rb"<title[^>]*>([^<]{1,100})<", re.IGNORECASE)


def cause(error: BaseException) -> str:
    """The innermost reason of urllib3's nested errors, in words."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException):
        error, reason = reason, getattr(reason, "reason", None)
    by_proxy = "the proxy of its kubeconfig: " if type(error).__name__ == "ProxyError" else ""
    error = getattr(error, "original_error", error)
    text = str(error)
    for theirs, ours in TLS.items():
        if theirs in text:
            return by_proxy + ours.format(_detail(text))
    text = text.rpartition(": ")[2] if "object at 0x" in text or "Connection(" in text else text
    return by_proxy + (re.sub(r"^\[Errno \d+\] ", "", text) or type(error).__name__)


def _detail(text: str) -> str:
    """The TLS library's own words, without its names of files."""
    said = re.sub(r" \(_ssl\.c:\d+\)|^.*\] |.*certificate verify failed: ", "", text).rstrip(". )")
    return f" ({said})"


def answer(data: bytes, code: int, kind: str) -> dict[str, Any]:
    """What an API server answered, as a value. Raises ValueError, saying what was found, for what is no such answer."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict) and _are_objects(found.get("items", [])):
        return found
    raise ValueError(stranger(data, code, kind))


def _are_objects(items: object) -> bool:
    """Whether this is a list of objects, each with its metadata; an empty list may be null."""
    ours = isinstance(items, list) and all(isinstance(one, dict) and "metadata" in one for one in items)
    return items is None or ours


def is_page(data: bytes) -> bool:
    """Whether this is a page for browsers, which no API server sends."""
    return data.lstrip()[:1] == b"<"


def stranger(data: bytes, code: int, kind: str) -> str:
    """Say what answered instead of an API server."""
    title = TITLE.search(data)
    named = f" with the title {' '.join(title[1].decode(errors='replace').split())!r}" if title else ""
    found = f"a web page{named}" if is_page(data) else f"{len(data)} bytes of {kind.partition(';')[0] or 'no kind'}"
    return (
        f"what answers there is no API server: found {found} (HTTP {code}), expected JSON; a proxy or a login page may "
        "stand between: check 'server:' and 'proxy-url:' of the kubeconfig"
    )


def header(value: str, what: str) -> str:
    """A credential as a header takes it. Raises ValueError, which never shows it, for one that no header can hold."""
    value = value.strip()
    for place, letter in enumerate(value, start=1):
        if not "!" <= letter <= "~":
            shown = {"\n": "a line break", "\r": "a line break", " ": "a blank"}.get(letter, f"U+{ord(letter):04X}")
            raise ValueError(f"its {what} cannot be sent: found {shown} as letter {place} of {len(value)}, allowed are "
                             f"ASCII letters, digits and signs; {LOG_IN}")  # fmt: skip
    return value
