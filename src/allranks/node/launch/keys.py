"""An SSH key of a run's own that every node of it can make by itself, from the run's secret.

Ed25519 (RFC 8032) in the files of OpenSSH (its PROTOCOL.key). Only the public half is computed here; signing is ssh's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from typing import Tuple

PURPOSE = b"allranks: the ssh key of this run"
KIND = b"ssh-ed25519"
COMMENT = b"allranks"
PRIME = 2**255 - 19
CURVE = -121665 * pow(121666, PRIME - 2, PRIME) % PRIME
Point = Tuple[int, int, int, int]
"""X, Y, Z and T with x = X/Z, y = Y/Z, xy = T/Z."""


def of_run(secret: bytes) -> Tuple[str, str]:
    """The private key's file and the public key's line, the same for the same secret."""
    seed = hmac.new(secret, PURPOSE, hashlib.sha256).digest()
    public = public_of(seed)
    blob = _string(KIND) + _string(public)
    check = struct.pack(">I", 0x616C6C72) * 2
    private = check + _string(KIND) + _string(public) + _string(seed + public) + _string(COMMENT)
    private += bytes(range(1, 1 + -len(private) % 8))
    whole = b"openssh-key-v1\0" + _string(b"none") * 2 + _string(b"") + struct.pack(">I", 1)
    encoded = base64.b64encode(whole + _string(blob) + _string(private)).decode()
    lines = "\n".join(encoded[start : start + 70] for start in range(0, len(encoded), 70))
    file = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n"
    return file, f"{KIND.decode()} {base64.b64encode(blob).decode()} {COMMENT.decode()}\n"


def public_of(seed: bytes) -> bytes:
    """The public key of 32 bytes that are the private one (RFC 8032, 5.1.5)."""
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    number = number & ((1 << 254) - 8) | (1 << 254)
    found, power = (0, 1, 1, 0), _base()
    while number:
        if number & 1:
            found = _add(found, power)
        power = _add(power, power)
        number >>= 1
    inverse = pow(found[2], PRIME - 2, PRIME)
    x, y = found[0] * inverse % PRIME, found[1] * inverse % PRIME
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _base() -> Point:
    y = 4 * pow(5, PRIME - 2, PRIME) % PRIME
    square = (y * y - 1) * pow(CURVE * y * y + 1, PRIME - 2, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    x = x if x % 2 == 0 else PRIME - x
    return x, y, 1, x * y % PRIME


def _add(one: Point, two: Point) -> Point:
    a, b = (one[1] - one[0]) * (two[1] - two[0]), (one[1] + one[0]) * (two[1] + two[0])
    c, d = 2 * one[3] * two[3] * CURVE, 2 * one[2] * two[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
