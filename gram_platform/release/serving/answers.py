"""One completion on its way: an order is given to the model, and its deliveries become text."""

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Protocol

from gram_platform.release.serving import refusals
from gram_platform.release.serving.batch import STOP, Order
from gram_platform.release.serving.engine import BUSY, FAILED, LATE, Delivery
from gram_platform.release.serving.metrics import Metrics, Timed
from gram_platform.release.serving.policy import Grant
from gram_platform.release.serving.text import TextStream, Vocabulary

FORBIDDEN = "forbidden"  # the model's own look at the policy found no grant


class ModelLost(Exception):
    """The model's process is not there, or has ended while it answered."""


class Completions(Protocol):
    """Where deliveries come from."""

    def stream(self, digest: str, profile: str, order: Order, whole: bool) -> AsyncIterator[Delivery]:
        """The first delivery says that the order is taken up; closing it abandons the order. ModelLost.

        `whole`: nobody looks before the end.
        """

    async def is_ready(self) -> bool:
        """Whether the model answers now."""


class Answer:
    """A granted order with its text. `finish_reason` is known once the texts have ended."""

    def __init__(
        self,
        completions: Completions,
        digest: str,
        grant: Grant,
        order: Order,
        vocabulary: Vocabulary,
        stops: tuple[str, ...],
        metrics: Metrics,
    ):
        self.id, self.created = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.grant, self.order, self.finish_reason, self.num_drawn = grant, order, "", 0
        self._completions, self._digest, self._metrics = completions, digest, metrics
        self._stops, self._text = stops, TextStream(vocabulary, stops)

    def usage(self) -> dict[str, int]:
        num_prompt = len(self.order.prompt)
        counts = {"prompt_tokens": num_prompt, "completion_tokens": self.num_drawn}
        return counts | {"total_tokens": num_prompt + self.num_drawn}

    async def texts(self, whole: bool = False) -> AsyncIterator[str]:
        """An empty text when the order is taken up, then text as it comes. Refusal when it cannot be finished."""
        timed = Timed(self._metrics, self.grant.profile, len(self.order.prompt))
        whole = whole and not self._stops  # a stop ends it early
        stream = self._completions.stream(self._digest, self.grant.profile, self.order, whole)
        is_taken_up = False
        try:
            async with aclosing(stream):
                async for delivery in stream:
                    is_taken_up = True
                    timed.drew(len(delivery.tokens))
                    yield self._shown(delivery)
                    if self.finish_reason:
                        timed.end = self.finish_reason
                        return
            raise ModelLost("its answer has no end")
        except ModelLost:
            timed.end = FAILED
            raise (refusals.interrupted() if is_taken_up else refusals.unavailable()) from None
        except refusals.Refusal as refusal:
            timed.end = refusal.code
            raise
        finally:
            timed.close()

    def _shown(self, delivery: Delivery) -> str:
        if delivery.end in REFUSALS:
            raise REFUSALS[delivery.end]()
        self.num_drawn += len(delivery.tokens)
        text = self._text.add(delivery.tokens, last=bool(delivery.end))
        self.finish_reason = STOP if self._text.stopped else delivery.end
        return text


REFUSALS = {
    BUSY: refusals.busy,
    LATE: refusals.late,
    FAILED: refusals.interrupted,
    FORBIDDEN: refusals.unknown_model,
}
