"""Deploys a run on Ray Serve. `Ingress` handles HTTP, and `Model` holds the weights.

The ingress runs in its own process, so that it can still respond when a model's process dies. It
sends only a token's digest to the model's process, which looks up the grant in its own copy of the
policy.

Every two seconds, `gram serve` confirms the policy to a `PolicyKeeper`, an actor that dies with the
command. Every replica reads the policy from the keeper once a second, and rejects all requests if
the last confirmation is older than `LEASE_S` seconds.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from gram_platform.release.serving.answers import ModelLost
from gram_platform.release.serving.api import Api
from gram_platform.release.serving.batch import GenerationRequest
from gram_platform.release.serving.engine import Delivery, logger
from gram_platform.release.serving.model_server import ModelServer, ModelSource
from gram_platform.release.serving.policy import LEASE_S, Policy
from gram_platform.release.serving.text import Vocabulary

NAMESPACE = "gram"
# Seconds between reads of the keeper's policy.
LOOK_S = 1.0
FIRST_LOOK_S = 60.0
# The longest wait for a delivery. A replica sends one every 2 s.
LONGEST_SILENCE_S = 10.0
# Errors of calls to Ray, except CancelledError if the caller itself was cancelled.
CALL_ERRORS = (TimeoutError, RayError, RayServeException, asyncio.CancelledError)
READY_S = 2.0
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 2.0, 30.0
# Far more than the engine accepts.
MAX_CONNECTIONS = 2000
# More calls than the engine's requests, for rejections and health checks.
SPARE_CALLS = 64


# A keeper that Ray restarts has no policy until one is confirmed again.
@ray.remote(num_cpus=0, max_restarts=-1)
class PolicyKeeper:
    """Holds the confirmed policy, and how many parts of the policy file have errors.

    Runs on the same machine as `gram serve`, so that both share `time.monotonic`.
    """

    def __init__(self) -> None:
        self._confirmed: tuple[Policy, int, float] | None = None

    def confirm(self, policy: Policy, num_left_out: int, read_at: float) -> None:
        self._confirmed = policy, num_left_out, read_at

    def read(self) -> tuple[Policy, int, float]:
        """Returns (policy, number of parts with errors, the policy's age in seconds).

        Raises RuntimeError if no policy has been confirmed yet.
        """
        if self._confirmed is None:
            raise RuntimeError("no policy was confirmed yet")
        policy, num_left_out, read_at = self._confirmed
        return policy, num_left_out, time.monotonic() - read_at


def follow(keeper: str, replica: ModelServer | Api) -> None:
    """Starts a thread that updates a replica's policy every second. Waits for the first update.

    Raises RuntimeError if no policy is confirmed in FIRST_LOOK_S seconds. The replica then does not
    start.
    """
    actor, has_taken = ray.get_actor(keeper, NAMESPACE), threading.Event()

    def look() -> None:
        while True:
            asked_at = time.monotonic()
            try:
                policy, num_left_out, age_s = ray.get(actor.read.remote(), timeout=LEASE_S)
                replica.policy, replica.num_left_out = policy, num_left_out
                replica.confirmed_at = asked_at - age_s
                has_taken.set()
            except Exception as why:
                # The policy expires soon, unless a later look succeeds.
                logger.warning("the policy cannot be read: %s", type(why).__name__)
            time.sleep(LOOK_S)

    threading.Thread(target=look, daemon=True).start()
    if not has_taken.wait(FIRST_LOOK_S):
        raise RuntimeError("there is no confirmed policy")


class Model(ModelServer):
    """A replica that loads only the modules that at least one API token may use."""

    def __init__(self, source: ModelSource, keeper: str):
        super().__init__(source)
        follow(keeper, self)

    def check_health(self) -> None:
        """Raises RuntimeError if the engine is dead or stalled. Serve then replaces the replica."""
        self.engine.check()


class RemoteCompletions:
    """Generates tokens with `Model` replicas.

    After a failure, raises ModelLost for every request until a replica is ready.
    """

    def __init__(self, model: DeploymentHandle):
        self._model, self._streams = model, model.options(stream=True)
        self._recovery: asyncio.Task | None = None

    async def stream(
        self, digest: str, profile: str, request: GenerationRequest, whole: bool
    ) -> AsyncIterator[Delivery]:
        if self._recovery is not None and not self._recovery.done():
            raise ModelLost("not there yet")
        responses = self._streams.stream.remote(digest, profile, request, whole)
        delivery = Delivery()
        try:
            # When a replica dies, its stream may neither end nor raise.
            while not delivery.end and (
                delivery := await asyncio.wait_for(anext(responses, None), LONGEST_SILENCE_S)
            ):
                yield delivery
        except CALL_ERRORS as error:
            if is_cancelled(error):
                raise
            self._recovery = asyncio.create_task(self._answering())
            raise ModelLost(type(error).__name__) from error
        finally:
            if delivery is None or not delivery.end:
                responses.cancel()

    async def is_ready(self) -> bool:
        try:
            return await asyncio.wait_for(self._model.is_ready.remote(), READY_S)
        except CALL_ERRORS as error:
            if is_cancelled(error):
                raise
            return False

    async def _answering(self) -> None:
        while not await self.is_ready():
            await asyncio.sleep(0.2)


def is_cancelled(error: BaseException) -> bool:
    """Returns True if `error` is a CancelledError and the running task is being cancelled.

    Returns False if only an awaited task was cancelled.
    """
    return isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling() > 0


@serve.ingress()
class Ingress:
    """Handles HTTP. Each replica creates its own `Api`, because an `Api` cannot be pickled."""

    def __init__(
        self,
        policy: Policy,
        tokenizer_json: str,
        context: int,
        max_requests: int,
        model: DeploymentHandle,
        keeper: str,
    ):
        vocabulary = Vocabulary.of(tokenizer_json, context)
        self._api = Api(policy, vocabulary, RemoteCompletions(model), max_requests)
        follow(keeper, self._api)

    def __serve_build_asgi_app__(self):
        return self._api.app()


def application(
    source: ModelSource,
    tokenizer_json: str,
    context: int,
    max_requests: int,
    num_replicas: int,
    keeper: str,
) -> serve.Application:
    """Builds the application for `serve.run`.

    `max_requests` limits each API token's open requests, unless the policy sets another limit.
    `keeper` is the name of the `PolicyKeeper`.
    """
    # There is no access log, because the metrics count requests.
    deploy = partial(
        serve.deployment,
        health_check_period_s=HEALTH_PERIOD_S,
        logging_config=LoggingConfig(enable_access_log=False),
    )
    model = deploy(
        Model,
        num_replicas=num_replicas,
        max_ongoing_requests=source.limits.num_rows + source.limits.num_waiting + SPARE_CALLS,
        ray_actor_options={
            "num_cpus": source.num_threads,
            "num_gpus": int(source.device == "cuda"),
        },
        health_check_timeout_s=HEALTH_TIMEOUT_S,
    )
    ingress = deploy(
        Ingress,
        max_ongoing_requests=MAX_CONNECTIONS,
        max_queued_requests=MAX_CONNECTIONS,
        ray_actor_options={"num_cpus": 0},
    )
    replicas = model.bind(source, keeper)
    return ingress.bind(source.policy, tokenizer_json, context, max_requests, replicas, keeper)
