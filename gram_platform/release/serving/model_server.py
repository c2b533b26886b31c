"""Runs the engine, and checks every grant, in the process that holds the weights."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from gram_platform.config import RunConfig, View
from gram_platform.config.identity import invalid
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import Transformer
from gram_platform.release.serving.answers import FORBIDDEN, UNCONFIRMED
from gram_platform.release.serving.batch import Batch, GenerationRequest
from gram_platform.release.serving.engine import BUSY, Delivery, Engine, EngineLimits
from gram_platform.release.serving.policy import Grant, NotGranted, Policy, is_recent
from gram_platform.store import Store
from gram_platform.store.views import load_view

# A stream's tokens from this many seconds are sent together.
PAUSE_S = 0.03
# The longest time between two deliveries, which may be empty.
BEAT_S = 2.0


@dataclass(frozen=True)
class ModelSource:
    """Everything that a model server needs to start on any machine."""

    storage: str
    run_id: str
    policy: Policy
    # The number of token ids that have a text.
    vocab_size: int
    end_of_text: int
    limits: EngineLimits = field(default_factory=EngineLimits)
    precision: str = "float32"
    device: str = "cpu"
    num_threads: int = 1


def require_servable(run: RunConfig, policy: Policy) -> None:
    """Raises ValueError if the run lacks a core MLP, or a module that the policy names."""
    if not run.model.d_mlp:
        raise invalid("run_id", run.run_id, "a run with a core MLP, not one expert per domain")
    policy.require_modules(run.model.module_domains)


def load_granted(source: ModelSource) -> Transformer:
    """Loads the run's model with only the modules that at least one API token may use.

    Also reads the other modules, but only to hash the weights.
    """
    store = Store(source.storage)
    view = View.of(source.run_id, dict.fromkeys(source.policy.modules_of_tokens, 1.0))
    return load_view(store, view, source.precision)[1].to(source.device)


class ModelServer:
    """Serves requests that `policy` grants. All coroutines must run in the same event loop."""

    def __init__(self, source: ModelSource, model: Transformer | None = None):
        torch.set_num_threads(source.num_threads)
        self.policy, self.model = source.policy, model or load_granted(source)
        batch = Batch(
            RowReader(self.model, source.limits.num_rows), source.vocab_size, source.end_of_text
        )
        self.engine = Engine(batch, source.limits)
        # As in `Api`.
        self.confirmed_at, self.num_left_out = math.inf, 0

    async def stream(
        self, digest: str, profile: str, request: GenerationRequest, whole: bool
    ) -> AsyncIterator[Delivery]:
        """Yields a request's deliveries.

        The first delivery is empty. If the request is rejected, there is one delivery, whose `end`
        says why. Each delivery has the tokens of `PAUSE_S` seconds, or `BEAT_S` seconds if `whole`
        is True. If there are none, sends an empty delivery every `BEAT_S` seconds, so that a caller
        notices if this process dies. If the request's grant has changed or expired, the next
        delivery ends the stream.
        """
        grant = self._find_grant(digest, profile)
        if isinstance(grant, str):
            yield Delivery(end=grant)
            return
        loop, received = asyncio.get_running_loop(), asyncio.Queue()
        receive = partial(loop.call_soon_threadsafe, received.put_nowait)
        number = self.engine.submit(request, grant, receive)
        if number is None:
            yield Delivery(end=BUSY)
            return
        delivery = Delivery()
        try:
            while not delivery.end:
                yield delivery
                delivery = await self._next(received, whole)
                if (current := self._find_grant(digest, profile)) != grant:
                    delivery = Delivery(end=current if isinstance(current, str) else FORBIDDEN)
            yield delivery
        finally:
            self.engine.abandon(number)

    def _find_grant(self, digest: str, profile: str) -> Grant | str:
        if not is_recent(self.confirmed_at):
            return UNCONFIRMED
        try:
            return self.policy.grant(digest, profile)
        except NotGranted:
            return FORBIDDEN

    async def _next(self, received: asyncio.Queue, whole: bool) -> Delivery:
        delivery, started = Delivery(), time.monotonic()
        with contextlib.suppress(TimeoutError):
            delivery = await asyncio.wait_for(received.get(), BEAT_S)
            if not whole and not delivery.end:
                await asyncio.sleep(PAUSE_S)
            while not delivery.end and (
                time.monotonic() < started + BEAT_S if whole else not received.empty()
            ):
                more = await asyncio.wait_for(received.get(), BEAT_S)
                delivery = replace(more, tokens=delivery.tokens + more.tokens)
        return delivery

    async def is_ready(self) -> bool:
        try:
            self.engine.check()
        except RuntimeError:
            return False
        return True
