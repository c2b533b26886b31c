"""What the server counts, in Prometheus' text format."""

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of one process that answers HTTP. Names of profiles and holders come from the policy, never a caller."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        parts = {"registry": self.registry}
        by_profile = ("profile",)
        self.ended = Counter("gram_completions", "Completions by how they ended", ("profile", "end"), **parts)
        self.refused = Counter("gram_refusals", "Requests that were not served", ("status", "code"), **parts)
        self.prompt_tokens = Counter("gram_prompt_tokens", "Tokens read", by_profile, **parts)
        self.drawn_tokens = Counter("gram_completion_tokens", "Tokens drawn", by_profile, **parts)
        self.open = Gauge("gram_open_completions", "Completions being answered", by_profile, **parts)
        names = ("gram_first_token_seconds", "gram_completion_seconds")
        texts = ("From a request to its first token", "From a request to its end")
        self.first_token, self.whole = (
            Histogram(name, text, by_profile, buckets=SECONDS, **parts) for name, text in zip(names, texts, strict=True)
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Timed:
    """One completion's clock and counts."""

    def __init__(self, metrics: Metrics, profile: str, num_prompt_tokens: int):
        self._metrics, self._profile, self._started = metrics, profile, time.monotonic()
        self.num_drawn, self.end = 0, "abandoned"
        metrics.open.labels(profile).inc()
        metrics.prompt_tokens.labels(profile).inc(num_prompt_tokens)

    def drew(self, num_tokens: int) -> None:
        if num_tokens and not self.num_drawn:
            self._metrics.first_token.labels(self._profile).observe(time.monotonic() - self._started)
        self.num_drawn += num_tokens

    def close(self) -> None:
        metrics, profile = self._metrics, self._profile
        metrics.open.labels(profile).dec()
        metrics.drawn_tokens.labels(profile).inc(self.num_drawn)
        metrics.ended.labels(profile, self.end).inc()
        metrics.whole.labels(profile).observe(time.monotonic() - self._started)
