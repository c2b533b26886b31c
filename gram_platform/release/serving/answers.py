"""Converts generated tokens to the text of a completion, and collects metrics."""

import time
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gram_platform.release.serving.batch import STOP, GenerationRequest
from gram_platform.release.serving.engine import FAILED, Delivery
from gram_platform.release.serving.policy import Grant
from gram_platform.release.serving.requests import COMMON_REFUSALS, Refusal, refusal
from gram_platform.release.serving.text import TextStream, Vocabulary

# The end of a request if the policy does not grant it, or is not confirmed.
FORBIDDEN, UNCONFIRMED = "model_not_found", "policy_unconfirmed"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class ModelLost(Exception):
    """Raised if the model's process is unavailable or dies during an answer."""


class Metrics:
    """The Prometheus metrics of one process that serves HTTP.

    Their labels never contain text from a caller.
    """

    def __init__(self) -> None:
        self.registry, by_profile = CollectorRegistry(), ("profile",)
        counter, gauge = (partial(kind, registry=self.registry) for kind in (Counter, Gauge))
        timer = partial(Histogram, labelnames=by_profile, registry=self.registry, buckets=SECONDS)
        self.ended = counter(
            "gram_completions", "Completions by how they ended", ("profile", "end")
        )
        self.refused = counter("gram_refusals", "Requests that were not served", ("status", "code"))
        self.prompt_tokens = counter("gram_prompt_tokens", "Tokens read", by_profile)
        self.drawn_tokens = counter("gram_completion_tokens", "Tokens drawn", by_profile)
        self.open = gauge("gram_open_completions", "Completions being answered", by_profile)
        self.policy_age = gauge("gram_policy_age_seconds", "Since the policy was last confirmed")
        self.policy_refused = gauge(
            "gram_policy_refused", "Parts of the policy's file that have an error"
        )
        self.first_token = timer("gram_first_token_seconds", "From a request to its first token")
        self.whole = timer("gram_completion_seconds", "From a request to its end")

    def text(self, profiles: Collection[str]) -> bytes:
        """Formats the metrics labelled with one of `profiles`, and those without a profile."""
        metrics, allowed = list(self.registry.collect()), (None, *profiles)
        for metric in metrics:
            metric.samples = [s for s in metric.samples if s.labels.get("profile") in allowed]
        return generate_latest(SimpleNamespace(collect=lambda: metrics))


class Completions(Protocol):
    def stream(
        self, digest: str, profile: str, request: GenerationRequest, whole: bool
    ) -> AsyncIterator[Delivery]:
        """Yields the same deliveries as `ModelServer.stream`. Raises ModelLost if the model fails.

        Closing the iterator cancels the request.
        """

    async def is_ready(self) -> bool: ...


class Answer:
    """Generates the text of a granted request. Sets `finish_reason` at the end."""

    def __init__(
        self,
        completions: Completions,
        digest: str,
        grant: Grant,
        request: GenerationRequest,
        vocabulary: Vocabulary,
        stops: tuple[str, ...],
        metrics: Metrics,
    ):
        self.id, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.grant, self.request, self.finish_reason, self.num_drawn = grant, request, "", 0
        self._completions, self._digest, self._metrics = completions, digest, metrics
        self._stops, self._text = stops, TextStream(vocabulary, stops)

    def usage(self) -> dict[str, int]:
        counts = {
            "prompt_tokens": len(self.request.prompt),
            "completion_tokens": self.num_drawn,
        }
        return counts | {"total_tokens": sum(counts.values())}

    async def texts(self, whole: bool = False) -> AsyncIterator[str]:
        """Yields "" once the request is accepted, then text. Raises Refusal if the answer fails."""
        metrics, profile = self._metrics, self.grant.profile
        # A stop sequence may end the text, so tokens are needed as they are drawn.
        whole = whole and not self._stops
        stream = self._completions.stream(self._digest, profile, self.request, whole)
        started, is_accepted, end = time.monotonic(), False, "abandoned"
        metrics.open.labels(profile).inc()
        metrics.prompt_tokens.labels(profile).inc(len(self.request.prompt))
        try:
            async with aclosing(stream):
                async for delivery in stream:
                    is_accepted = True
                    if delivery.tokens and not self.num_drawn:
                        metrics.first_token.labels(profile).observe(time.monotonic() - started)
                    self.num_drawn += len(delivery.tokens)
                    if delivery.end in COMMON_REFUSALS:
                        raise refusal(delivery.end)
                    text = self._text.add(delivery.tokens, last=bool(delivery.end))
                    self.finish_reason = STOP if self._text.stopped else delivery.end
                    yield text
                    if self.finish_reason:
                        end = self.finish_reason
                        return
            raise ModelLost("the stream ended without a final delivery")
        except ModelLost:
            end = FAILED
            raise refusal("interrupted" if is_accepted else "unavailable") from None
        except Refusal as refused:
            end = refused.code
            raise
        finally:
            metrics.open.labels(profile).dec()
            metrics.drawn_tokens.labels(profile).inc(self.num_drawn)
            metrics.ended.labels(profile, end).inc()
            metrics.whole.labels(profile).observe(time.monotonic() - started)
