"""What the process with the weights loads and answers, whoever calls it."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable

import pytest

from gram_platform.config import run_from_plain
from gram_platform.release.serving import deployments, model_server
from gram_platform.release.serving.answers import FORBIDDEN, UNCONFIRMED, ModelLost
from gram_platform.release.serving.batch import LENGTH, GenerationRequest
from gram_platform.release.serving.engine import Delivery
from gram_platform.release.serving.model_server import (
    ModelServer,
    ModelSource,
    load_granted,
    require_servable,
)
from gram_platform.release.serving.policy import LEASE_S, token_digest
from gram_platform.store import Store
from tests.refused import refused
from tests.release.serving.http import load_of
from tests.release.serving.planted import END_OF_TEXT, planted, write_storage


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> ModelSource:
    root, plan = tmp_path_factory.mktemp("model"), planted()
    return ModelSource(str(root), write_storage(root, plan), plan.policy, 250, END_OF_TEXT)


def answered(
    server: ModelServer, digest: str, profile: str, request: GenerationRequest, whole: bool = False
) -> list[Delivery]:
    async def collect() -> list[Delivery]:
        return [delivery async for delivery in server.stream(digest, profile, request, whole)]

    return asyncio.run(collect())


def test_only_granted_modules_are_in_memory(source):
    model = load_granted(source)
    assert model.config.module_domains == ("lisp", "virology")
    assert not [name for name, _ in model.named_parameters() if "secret" in name]
    narrower = dataclasses.replace(source.policy, tokens=source.policy.tokens[:1])  # that of `open`
    assert load_granted(dataclasses.replace(source, policy=narrower)).config.module_domains == ()


def test_the_process_with_the_weights_looks_the_grant_up_itself(source):
    server, tokens = ModelServer(source), planted().tokens
    forbidden = [Delivery(end=FORBIDDEN)]
    for digest, profile in (
        (token_digest(tokens["lisp"]), "both"),
        (token_digest(tokens["lisp"]), "nobodys"),
        (token_digest("nobody"), "open"),
        (tokens["both"], "both"),
        ("", "open"),
    ):
        assert answered(server, digest, profile, GenerationRequest((7,), 3)) == forbidden
    assert load_of(server.engine) == (0, 0)
    server.engine.close()


def test_runs_that_cannot_be_served_are_refused(source):
    run = run_from_plain(Store(source.storage).run(source.run_id).config())
    require_servable(run, source.policy)
    without_core = dataclasses.replace(run, model=dataclasses.replace(run.model, d_mlp=0))
    with refused("run_id", without_core.run_id):
        require_servable(without_core, source.policy)
    dense = dataclasses.replace(run, model=dataclasses.replace(run.model, modules=()))
    with refused("profiles.lisp.modules", "lisp"):
        require_servable(dense, source.policy)


def test_a_request_is_never_silent_for_long(source, monkeypatch):
    """Also when nobody looks before the end: what has been drawn comes every beat, and is the same
    in all."""
    server, digest = ModelServer(source), token_digest(planted().tokens["lisp"])
    request = GenerationRequest((1,), 40)
    in_full = [
        token for delivery in answered(server, digest, "lisp", request) for token in delivery.tokens
    ]
    monkeypatch.setattr(model_server, "BEAT_S", 0.001)
    beats = answered(server, digest, "lisp", request, whole=True)
    server.engine.close()
    assert len(beats) > 3
    assert [token for delivery in beats for token in delivery.tokens] == in_full
    assert [delivery.end for delivery in beats] == [""] * (len(beats) - 1) + [LENGTH]


@pytest.mark.parametrize("whole", [False, True])
def test_a_revocation_ends_what_is_being_answered(source, whole):
    """And a policy that nobody confirms any more grants nothing, as the server's caller is told."""
    server, digest = ModelServer(source), token_digest(planted().tokens["lisp"])
    others = tuple(rule for rule in source.policy.tokens if rule.name != "lisp")

    async def end_of(event: Callable[[], None] = lambda: None) -> str:
        async for delivery in server.stream(digest, "lisp", GenerationRequest((1,), 40), whole):
            event()
            end = delivery.end
        return end

    async def history() -> list[str]:
        ends = [
            await end_of(
                lambda: setattr(server, "policy", dataclasses.replace(source.policy, tokens=others))
            )
        ]
        ends.append(await end_of())
        server.policy = source.policy
        ends.append(
            await end_of(lambda: setattr(server, "confirmed_at", time.monotonic() - LEASE_S - 0.1))
        )
        ends.append(await end_of())
        server.confirmed_at = time.monotonic()
        return [*ends, await end_of()]

    assert asyncio.run(history()) == [FORBIDDEN, FORBIDDEN, UNCONFIRMED, UNCONFIRMED, LENGTH]
    server.engine.close()


@pytest.mark.parametrize("rights", [{"lisp": 1.0}, {"lisp": 1.0, "virology": 0.5}, {}])
def test_a_profile_that_is_changed_ends_what_it_is_answering(source, rights):
    """The token keeps the profile, which has a module less or a lower weight now."""
    server, digest = ModelServer(source), token_digest(planted().tokens["both"])
    profiles = (("both", tuple(rights.items())),)
    narrowed = dataclasses.replace(source.policy, profiles=profiles)

    async def end_of_stream() -> str:
        async for delivery in server.stream(digest, "both", GenerationRequest((1,), 40), False):
            server.policy, end = narrowed, delivery.end
        return end

    assert asyncio.run(end_of_stream()) == FORBIDDEN
    server.engine.close()


class Handle:
    """A handle of a replica that accepts a request; what comes of its further calls is `then`'s."""

    heard = cancelled = False

    def __init__(self, then: Callable[[], Awaitable]):
        self.stream = self.is_ready = self
        self.then = then

    def options(self, **_):
        return self

    def remote(self, *_):
        return self

    def __await__(self):
        return self.then().__await__()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.heard:
            await self.then()
        self.heard = True
        return Delivery()

    def cancel(self):
        self.cancelled = True


async def asked(completions: deployments.RemoteCompletions) -> list[Delivery]:
    return [
        delivery
        async for delivery in completions.stream("digest", "lisp", GenerationRequest((1,), 4), True)
    ]


def test_a_replica_that_falls_silent_is_lost(monkeypatch):
    """Its stream neither ends nor raises, as after a kill at the wrong moment; the next caller does
    not wait for it."""

    async def both():
        model = Handle(lambda: asyncio.sleep(60))
        completions = deployments.RemoteCompletions(model)
        with pytest.raises(ModelLost):
            await asked(completions)
        with pytest.raises(ModelLost):
            await asked(completions)
        return model

    monkeypatch.setattr(deployments, "LONGEST_SILENCE_S", 0.1)
    assert asyncio.run(both()).cancelled


async def cancelled_by_ray() -> None:
    raise asyncio.CancelledError


def test_a_cancellation_that_is_not_the_callers_is_a_loss():
    """It comes out of Ray: passed on, it would end a stream without an error."""

    async def ask():
        model = Handle(cancelled_by_ray)
        completions = deployments.RemoteCompletions(model)
        assert not await completions.is_ready()
        with pytest.raises(ModelLost):
            await asked(completions)
        return model

    assert asyncio.run(ask()).cancelled


def test_a_caller_who_is_cancelled_is():
    async def leave():
        model = Handle(lambda: asyncio.sleep(60))
        completions = deployments.RemoteCompletions(model)
        for call in (asked(completions), completions.is_ready()):
            caller = asyncio.create_task(call)
            await asyncio.sleep(0.05)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert caller.cancelled()
        return model

    assert asyncio.run(leave()).cancelled
