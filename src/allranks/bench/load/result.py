"""What a load came to, in the terms of vLLM's and NVIDIA's benchmarks: TTFT, ITL, TPOT, end-to-end latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allranks.bench.load.ask import Seen
from allranks.bench.load.drive import Load

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Spread:
    """A latency over all that was seen, in seconds, sorted."""

    values: tuple[float, ...] = ()

    def at(self, part: float) -> float | None:
        """The value below which that part of all lies, between two by their distance; None of nothing."""
        if not self.values:
            return None
        place = part * (len(self.values) - 1)
        low = int(place)
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (self.values[high] - self.values[low]) * (place - low)

    def to_json(self) -> dict[str, float] | None:
        """Milliseconds."""
        if not self.values:
            return None
        found = {"mean": sum(self.values) / len(self.values)}
        found |= {name: self.at(part) or 0.0 for name, part in QUANTILES.items()}
        return {name: round(value * 1e3, 3) for name, value in {**found, "max": self.values[-1]}.items()}


@dataclass(frozen=True)
class Row:
    """One load. Rates are a second of ``seconds``; latencies are those of whole answers alone.

    ``ttft`` is from asking to the first text, ``itl`` between two pieces of one answer, ``tpot`` an answer's time after
    its first token by its further tokens, ``e2e`` from asking to the end, ``late`` how much later than due was asked.
    ``decoding``: tokens a second while all clients of a round were decoding; None where there was no such time.
    """

    load: Load
    seconds: float
    asked: int
    answers: int
    tokens: int
    prompt_tokens: int
    chunks: int
    counted: bool
    errors: Mapping[str, int] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    ttft: Spread = Spread()
    itl: Spread = Spread()
    tpot: Spread = Spread()
    e2e: Spread = Spread()
    late: Spread = Spread()
    decoding: float | None = None

    @property
    def requests_a_second(self) -> float:
        return self.answers / self.seconds

    @property
    def tokens_a_second(self) -> float:
        return self.tokens / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Latencies in milliseconds."""
        load = {"clients": self.load.clients} if self.load.clients else {"rate": self.load.rate}
        return {
            **load, "seconds": round(self.seconds, 3), "requests": self.asked, "answers": self.answers,
            "errors": dict(self.errors), "messages": dict(self.messages),
            "tokens": self.tokens, "prompt_tokens": self.prompt_tokens, "tokens_counted_by_server": self.counted,
            "requests_per_second": round(self.requests_a_second, 3),
            "tokens_per_second": round(self.tokens_a_second, 1),
            "prompt_tokens_per_second": round(self.prompt_tokens / self.seconds, 1),
            "decoding_tokens_per_second": None if self.decoding is None else round(self.decoding, 1),
            "tokens_per_chunk": round(self.tokens / self.chunks, 2) if self.chunks else None,
            "ttft_ms": self.ttft.to_json(), "itl_ms": self.itl.to_json(), "tpot_ms": self.tpot.to_json(),
            "e2e_ms": self.e2e.to_json(), "late_ms": self.late.to_json(),
        }  # fmt: skip


def row(load: Load, seconds: float, found: Sequence[Seen], streamed: bool) -> Row:
    """Sum up what clients saw. Answers that did not come as a stream have an end, and no first token."""
    whole = [seen for seen in found if seen.whole]
    failed = [seen for seen in found if not seen.whole]
    begun = [seen for seen in whole if seen.chunks] if streamed else []
    last = begun[-load.clients :] if load.rounds else []
    return Row(
        load,
        max(seconds, 1e-9),
        asked=len(found),
        answers=len(whole),
        tokens=sum(seen.tokens for seen in whole),
        prompt_tokens=sum(seen.prompt_tokens for seen in whole),
        chunks=sum(len(seen.chunks) for seen in begun),
        counted=all(seen.counted for seen in whole),
        errors=dict(Counter(seen.error for seen in failed).most_common()),
        messages={seen.error: seen.message for seen in reversed(failed)},
        ttft=_spread(seen.chunks[0] - seen.asked for seen in begun),
        itl=_spread(b - a for seen in begun for a, b in zip(seen.chunks, seen.chunks[1:], strict=False)),
        tpot=_spread((seen.chunks[-1] - seen.chunks[0]) / (seen.tokens - 1) for seen in begun if seen.tokens > 1),
        e2e=_spread(seen.ended - seen.asked for seen in whole),
        late=_spread(seen.asked - seen.due for seen in found) if load.rate else Spread(),
        decoding=_decoding(last),
    )


def _spread(values: Iterable[float]) -> Spread:
    return Spread(tuple(sorted(values)))


def _decoding(answers: Sequence[Seen]) -> float | None:
    """Tokens a second from the moment all have their first one to the moment the first has its last."""
    if not answers:
        return None
    start, end = max(seen.chunks[0] for seen in answers), min(seen.chunks[-1] for seen in answers)
    if end <= start:
        return None
    return sum(seen.tokens / (seen.chunks[-1] - seen.chunks[0]) for seen in answers)
