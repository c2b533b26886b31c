"""The process that has the weights: it looks up every grant itself, and runs the engine."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import torch

from gram_platform.config import View, run_from_plain
from gram_platform.config.identity import invalid
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import Transformer
from gram_platform.release.serving.answers import FORBIDDEN
from gram_platform.release.serving.batch import Batch, Order
from gram_platform.release.serving.engine import BUSY, Delivery, Engine, EngineLimits
from gram_platform.release.serving.policy import NotGranted, Policy
from gram_platform.store import Store
from gram_platform.store.views import load_view

PAUSE_S = 0.03  # in which a stream's tokens are gathered
BEAT_S = 2.0  # after which a delivery is made, if only an empty one


@dataclass(frozen=True)
class ModelSource:
    """Which weights to load and how: with everything here, a model server starts anywhere."""

    storage: str
    run_id: str
    policy: Policy
    vocab_size: int  # ids that have a text
    end_of_text: int
    limits: EngineLimits = field(default_factory=EngineLimits)
    precision: str = "float32"
    device: str = "cpu"
    num_threads: int = 1


def require_servable(source_config, policy: Policy) -> None:
    """ValueError for a run that has no core of its own, or lacks a module that the policy names."""
    model = source_config.model
    if not model.d_mlp:
        raise invalid("run_id", source_config.run_id, "a run with a core MLP: an expert for each domain is not served")
    policy.require_modules(model.module_domains)


def load_granted(source: ModelSource) -> Transformer:
    """The run's model with the modules that some token is granted.

    Other modules are read from the file, because its hash covers them, and dropped before there is a model.
    """
    store = Store(source.storage)
    require_servable(run_from_plain(store.run(source.run_id).config()), source.policy)
    view = View.of(source.run_id, dict.fromkeys(source.policy.granted_modules, 1.0))
    model = load_view(store, view, source.precision)[1].to(source.device)
    gc.collect()
    return model


class ModelServer:
    """Continues orders for whoever the policy grants them to. Coroutines belong to one event loop."""

    def __init__(self, source: ModelSource, model: Transformer | None = None):
        """`model`: as `load_granted` gives it, which is called without one."""
        torch.set_num_threads(source.num_threads)
        self.policy, self.model = source.policy, model or load_granted(source)
        self._context = self.model.config.seq_len
        batch = Batch(RowReader(self.model, source.limits.num_rows), source.vocab_size, source.end_of_text)
        self._vocab_size = source.vocab_size
        self.engine = Engine(batch, source.limits)

    def change_policy(self, policy: Policy) -> None:
        """Orders from now on; those at work are finished. ValueError for a module that is not in memory."""
        policy.require_loaded(self.model.config.module_domains)
        self.policy = policy

    async def stream(self, digest: str, profile: str, order: Order, whole: bool) -> AsyncIterator[Delivery]:
        """Deliveries of one order. The first is empty, or the last: busy or forbidden. ValueError for a bad order.

        Then come its tokens, a few times a second; with `whole` less often. Without any an empty delivery comes every
        `BEAT_S`, so that silence means that this process is lost.

        The grant is looked up here and not taken from whoever calls: without a token's digest nothing is answered, and
        no call names a module.
        """
        try:
            grant = self.policy.grant(digest, profile)
        except NotGranted:
            yield Delivery(end=FORBIDDEN)
            return
        order.check(self._vocab_size, self._context)
        loop, received = asyncio.get_running_loop(), asyncio.Queue()
        number = self.engine.submit(order, grant, lambda d: loop.call_soon_threadsafe(received.put_nowait, d))
        if number is None:
            yield Delivery(end=BUSY)
            return
        delivery = Delivery()
        try:
            while not delivery.end:
                yield delivery
                delivery = await self._next(received, whole)
            yield delivery
        finally:
            if not delivery.end:
                self.engine.abandon(number)

    async def _next(self, received: asyncio.Queue, whole: bool) -> Delivery:
        """What has come within a pause as one delivery: passing one on costs more than drawing a token."""
        delivery, started = Delivery(), time.monotonic()
        with contextlib.suppress(TimeoutError):
            delivery = await asyncio.wait_for(received.get(), BEAT_S)
            if not whole and not delivery.end:
                await asyncio.sleep(PAUSE_S)
            while not delivery.end and (time.monotonic() < started + BEAT_S if whole else not received.empty()):
                more = await asyncio.wait_for(received.get(), BEAT_S)
                delivery = replace(more, tokens=delivery.tokens + more.tokens)
        return delivery

    async def is_ready(self) -> bool:
        try:
            self.engine.check()
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        self.engine.close()
