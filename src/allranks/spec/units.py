"""Durations and quantities as values: they compare, convert, and print the way they are written.

``parse`` raises ValueError with what is allowed; the caller says what was found, and where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import total_ordering
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
# "m(?!s)" keeps the minutes of '500ms' from being found.
DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m(?!s))?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?", re.ASCII)
DURATION_PATTERN = r"^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m(?!s))?([0-9]+s)?([0-9]+ms)?$"
LONGEST = 10 * 365 * 86_400_000


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time, exact to the millisecond, from nothing to ten years."""

    milliseconds: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read ``90s``, ``10m``, ``1h30m``, ``7d`` or ``500ms``: largest unit first, each at most once."""
        found = DURATION.fullmatch(text)
        if not text or not found:
            raise ValueError(_duration_advice(text))
        counts = zip(found.groups("0"), MILLISECONDS.values(), strict=True)
        total = sum(int(count) * size for count, size in counts)
        if total > LONGEST:
            raise ValueError("a duration is at most 87600h (ten years)")
        return cls(total)

    @classmethod
    def of(cls, value: object) -> Duration:
        """Take a Duration as it is and text as ``parse`` does; a bare number has no unit and is refused."""
        if isinstance(value, Duration):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        raise ValueError(_duration_advice(str(value)))

    @property
    def seconds(self) -> float:
        """The same length in seconds."""
        return self.milliseconds / 1000

    def __bool__(self) -> bool:
        return self.milliseconds > 0

    def __str__(self) -> str:
        """Hours, minutes, seconds and milliseconds, without those that are zero: ``1h30m``."""
        rest, parts = self.milliseconds, []
        for unit in ("h", "m", "s", "ms"):
            count, rest = divmod(rest, MILLISECONDS[unit])
            parts.append(f"{count}{unit}" if count else "")
        return "".join(parts) or "0s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls.of, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": DURATION_PATTERN}


def _duration_advice(text: str) -> str:
    if text.isascii() and text.isdigit():
        return f"a duration needs its unit: write {text}s"
    return "allowed is a duration such as 90s, 10m, 1h30m, 24h or 500ms"


NANO = 10**9
DECIMAL_UNITS = {"n": 1, "u": 10**3, "m": 10**6, "": NANO} | {
    unit: NANO * 1000**power for power, unit in enumerate("kMGTPE", start=1)
}
BINARY_UNITS = {f"{unit}i": NANO * 1024**power for power, unit in enumerate("KMGTPE", start=1)}
QUANTITY = re.compile(
    r"(?P<whole>\d{1,30})(?:\.(?P<part>\d{0,9}))?(?P<unit>[KMGTPE]i|[numkMGTPE]|)(?:[eE](?P<power>[+-]?\d{1,2}))?",
    re.ASCII,
)
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]*)?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$"
MOST = (2**63 - 1) * NANO


@total_ordering
@dataclass(frozen=True)
class Quantity:
    """An amount as Kubernetes writes it (``16Gi``, ``500m``, ``8``, ``1e3``): exact, not negative, below 2^63.

    Equality and order go by the amount (``1024Mi == 1Gi``); ``family`` only says how to print it. The grammar is
    that of k8s.io/apimachinery/pkg/api/resource, without signs; finer than a nano is refused, not rounded.
    """

    nanos: int
    family: str = field(default="decimal", compare=False)

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read a Kubernetes quantity."""
        found = QUANTITY.fullmatch(text)
        if not found or (found["unit"] and found["power"]):
            raise ValueError("allowed is a quantity such as 8, 500m, 16Gi or 1e3")
        family = "binary" if found["unit"] in BINARY_UNITS else "exponent" if found["power"] else "decimal"
        size = (BINARY_UNITS | DECIMAL_UNITS)[found["unit"]]
        part, power = found["part"] or "", int(found["power"] or 0)
        nanos, rest = divmod(
            int(found["whole"] + part) * size * 10 ** max(power, 0), 10 ** (len(part) + max(-power, 0))
        )
        if rest:
            raise ValueError("a quantity is no finer than 1n")
        if nanos > MOST:
            raise ValueError("a quantity is at most 2^63 - 1")
        return cls(nanos, family)

    @classmethod
    def of(cls, value: object) -> Quantity:
        """Take a Quantity or a whole number as it is, and text as ``parse`` does."""
        if isinstance(value, Quantity):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            # A YAML file's 0.5 comes back here as its text: a binary float would not be exact.
            raise PydanticCustomError("string_type", "allowed is a quantity such as 8, 500m, 16Gi or 1e3")
        return cls.parse(value)

    @property
    def value(self) -> Decimal:
        """The exact amount in its base unit (cores, bytes, pieces)."""
        return Decimal(self.nanos).scaleb(-9, Context(prec=40))

    @property
    def whole(self) -> bool:
        """Whether the amount is a whole number of its base unit."""
        return self.nanos % NANO == 0

    def __int__(self) -> int:
        """Round up to the base unit, as Kubernetes does."""
        return -(-self.nanos // NANO)

    def __float__(self) -> float:
        return self.nanos / NANO

    def __bool__(self) -> bool:
        return self.nanos > 0

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __str__(self) -> str:
        """Print without a fraction, in the largest unit of its family that allows that."""
        # Without a unit it would be read back as a decimal amount, and print otherwise.
        binary = self.family == "binary" and self.nanos % BINARY_UNITS["Ki"] == 0
        units = {"": NANO} | BINARY_UNITS if binary else DECIMAL_UNITS
        unit, size = next(item for item in reversed(units.items()) if self.nanos % item[1] == 0)
        if not self.nanos:
            return "0"
        if self.family == "exponent":
            power = 3 * list(units).index(unit) - 9
            return f"{self.nanos // size}e{power}" if power else str(self.nanos // size)
        return f"{self.nanos // size}{unit}"

    def written(self) -> str | int:
        """As a person writes it in YAML: 8 without quotes, 16Gi as text."""
        text = str(self)
        return int(text) if text.isdigit() else text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(cls.written)
        return core_schema.no_info_plain_validator_function(cls.of, serialization=written)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": QUANTITY_PATTERN}, {"type": "number", "minimum": 0}]}
