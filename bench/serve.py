"""Load on a service: N clients at a time, each streaming one answer after another; what they see, as JSON lines.

``python bench/serve.py http://127.0.0.1:8000 --clients 1,8,64 --prompt 128 --new 128``. Decoding speed is counted from
the moment all have their first token to the moment the first has its last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Seen:
    """One answer: when it was asked for, and when each of its chunks came with how many tokens so far."""

    asked: float
    chunks: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""


async def ask(host: str, port: int, body: bytes) -> Seen:
    """One request on its own connection, with as little of HTTP as it takes: the client is not what is measured."""
    seen = Seen(time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port, limit=2**20)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    async for line in reader:
        if line.startswith((b'data: {"error"', b'{"error"')):
            seen.error = line.decode()[:200]
        elif line.startswith(b"data: {"):
            if b'"usage"' in line:
                seen.tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            else:
                seen.chunks.append(time.perf_counter())
    writer.close()
    return seen


async def load(host: str, port: int, clients: int, rounds: int, prompt: int, new: int, vocabulary: int) -> None:
    random.seed(clients)
    found: list[Seen] = []
    began = time.perf_counter()
    for _ in range(rounds):
        bodies = [
            json.dumps(
                {
                    "prompt": [random.randrange(3, vocabulary) for _ in range(prompt)],
                    "max_tokens": new,
                    "temperature": 0,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            ).encode()
            for _ in range(clients)
        ]
        found += await asyncio.gather(*(ask(host, port, body) for body in bodies))
    took = time.perf_counter() - began
    whole = [seen for seen in found if seen.chunks and not seen.error]
    errors = [seen.error for seen in found if seen.error]
    if not whole:
        print(json.dumps({"clients": clients, "errors": errors[:2]}), flush=True)
        return
    first = sorted(seen.chunks[0] - seen.asked for seen in whole)
    each = sorted((seen.chunks[-1] - seen.chunks[0]) / max(seen.tokens - 1, 1) for seen in whole)
    last = whole[-clients:]
    start, end = max(seen.chunks[0] for seen in last), min(seen.chunks[-1] for seen in last)
    decoded = sum(seen.tokens * (end - start) / (seen.chunks[-1] - seen.chunks[0]) for seen in last if end > start)
    print(
        json.dumps(
            {
                "clients": clients,
                "answers": len(whole),
                "errors": errors[:2],
                "tokens": sum(seen.tokens for seen in whole),
                "tokens_a_second": round(sum(seen.tokens for seen in whole) / took, 1),
                "decoding_tokens_a_second": round(decoded / (end - start), 1) if end > start else None,
                "ms_a_token": round(statistics.median(each) * 1e3, 3),
                "first_token_ms": round(statistics.median(first) * 1e3, 1),
                "first_token_ms_p99": round(first[int(0.99 * (len(first) - 1))] * 1e3, 1),
                "tokens_a_chunk": round(sum(s.tokens for s in whole) / sum(len(s.chunks) for s in whole), 2),
            }
        ),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=900)
    options = parser.parse_args()
    url = urlsplit(options.url)
    for clients in map(int, options.clients.split(",")):
        asyncio.run(
            load(
                str(url.hostname), url.port or 80, clients, options.rounds, options.prompt, options.new,
                options.vocabulary,
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
