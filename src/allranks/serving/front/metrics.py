"""What Prometheus may read at /metrics; names say ``allranks_``, units and kinds as Prometheus advises."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The numbers of one front."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "allranks_requests", "HTTP requests by path and status.", ["path", "status"], registry=registry
        )
        self.rejected = Counter("allranks_rejected", "Requests beyond concurrent + queue.", registry=registry)
        self.prompt_tokens = Counter("allranks_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.tokens = Counter("allranks_generated_tokens", "Tokens of answers.", registry=registry)
        self.errors = Counter("allranks_broken_answers", "Answers that ended by an error.", registry=registry)
        self.running = Gauge("allranks_running", "Requests that are being computed.", registry=registry)
        self.waiting = Gauge("allranks_waiting", "Requests that wait.", registry=registry)
        self.cache = Gauge("allranks_cache_usage_ratio", "Part of the key-value cache in use.", registry=registry)
        self.steps = Gauge("allranks_steps", "Steps of the loop since its start.", registry=registry)
        self.restarts = Gauge("allranks_restarts", "Restarts of the gang.", registry=registry)
        self.first = Histogram(
            "allranks_time_to_first_token_seconds", "From the request.", buckets=SLOW, registry=registry
        )
        self.between = Histogram(
            "allranks_inter_token_seconds", "Between two tokens of an answer.", buckets=FAST, registry=registry
        )
        self.whole = Histogram("allranks_request_seconds", "Of whole answers.", buckets=SLOW, registry=registry)
        self.restarts.set(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    def follow(self, news: dict[str, Any]) -> None:
        """Take over what rank 0 reports of its loop."""
        self.running.set(news["running"])
        self.waiting.set(news["waiting"])
        self.cache.set(news["cache"])
        self.steps.set(news["steps"])

    def token(self, now: float, began: float, last: float | None, count: int) -> None:
        """Count tokens that came at ``now``, of a request of ``began`` whose ones before came at ``last``."""
        if not count:
            return
        self.tokens.inc(count)
        (self.first if last is None else self.between).observe(now - (began if last is None else last))

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)
