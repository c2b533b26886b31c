"""Deploys on Ray Serve: `Ingress` answers HTTP and holds connections, `Model` holds the weights.

The ingress is separate so that it can answer a caller whose model process dies. It passes a token's digest and no
grant: the model's process looks the grant up in its own copy of the policy.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from gram_platform.release.serving.answers import ModelLost
from gram_platform.release.serving.api import Api
from gram_platform.release.serving.batch import GenerationRequest
from gram_platform.release.serving.engine import Delivery
from gram_platform.release.serving.model_server import ModelServer, ModelSource
from gram_platform.release.serving.policy import Policy, parse_policy
from gram_platform.release.serving.text import Vocabulary

APP, POLICY = "gram", "policy"
# a fixed version keeps replicas running: by default `serve.run` restarts them all, even for a change of policy
SAME_CODE = {"version": "1", "_internal": True}
SILENCE_S = 10.0  # longest wait for a delivery; a replica sends one every 2 s
LOST = (
    TimeoutError,
    RayError,
    RayServeException,
    asyncio.CancelledError,
)  # CancelledError counts unless the caller itself was cancelled
READY_S = 2.0  # time-out of a readiness check
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 2.0, 30.0
MAX_CONNECTIONS = 2000  # completions being answered; the engine's own limits are far lower
SPARE_CALLS = 64  # calls to a replica beyond its engine's requests: refused ones and health checks


class Model:
    """Runs one replica: a model with the granted modules, and its engine."""

    def __init__(self, source: ModelSource):
        self._server = ModelServer(source)

    def reconfigure(self, user_config: Mapping) -> None:
        """Applies a policy's text; Serve calls it when a replica starts and at every change."""
        self._server.change_policy(parse_policy(user_config[POLICY]))

    async def stream(
        self, digest: str, profile: str, request: GenerationRequest, whole: bool
    ) -> AsyncIterator[Delivery]:
        async for delivery in self._server.stream(digest, profile, request, whole):
            yield delivery

    async def is_ready(self) -> bool:
        return await self._server.is_ready()

    def check_health(self) -> None:
        """Raises if the engine has died or stalled; Serve then replaces the replica."""
        self._server.engine.check()


class RemoteCompletions:
    """Generates with a `Model` deployment. After a loss it refuses at once until the model answers again."""

    def __init__(self, model: DeploymentHandle):
        self._model, self._streams = model, model.options(stream=True)
        self._recovery: asyncio.Task | None = None

    async def stream(
        self, digest: str, profile: str, request: GenerationRequest, whole: bool
    ) -> AsyncIterator[Delivery]:
        if self._recovery is not None and not self._recovery.done():
            raise ModelLost("not there yet")
        responses = self._streams.stream.remote(digest, profile, request, whole)
        delivery = None
        try:
            # the stream of a replica that dies may neither end nor raise
            delivery = await asyncio.wait_for(anext(responses, None), SILENCE_S)
            while delivery is not None:
                yield delivery
                delivery = None if delivery.end else await asyncio.wait_for(anext(responses, None), SILENCE_S)
        except LOST as error:
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
        except LOST as error:
            if is_cancelled(error):
                raise
            return False

    async def _answering(self) -> None:
        while not await self.is_ready():
            await asyncio.sleep(0.2)


def is_cancelled(error: BaseException) -> bool:
    """Tells whether the error is the running task's own cancellation, not one from the awaited call."""
    return isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling() > 0


@serve.ingress()
class Ingress:
    """Answers HTTP; built inside the replica, because a tokenizer and locks cannot be pickled."""

    def __init__(self, policy: Policy, tokenizer_json: str, context: int, model: DeploymentHandle):
        self._api = Api(policy, Vocabulary.of(tokenizer_json, context), RemoteCompletions(model))

    def reconfigure(self, user_config: Mapping) -> None:
        self._api.policy = parse_policy(user_config[POLICY])

    def __serve_build_asgi_app__(self):
        return self._api.app()


def application(
    source: ModelSource, tokenizer_json: str, context: int, num_replicas: int, policy_text: str
) -> serve.Application:
    """Builds the application for `serve.run`. A second run with another policy changes it in the present replicas.

    The new policy may name only modules that the source's policy grants: others are not in memory.
    """
    quiet = LoggingConfig(enable_access_log=False)  # the metrics count requests
    resources = {"num_cpus": source.num_threads} | ({"num_gpus": 1} if source.device == "cuda" else {})
    calls = source.limits.num_rows + source.limits.num_waiting + SPARE_CALLS
    model = serve.deployment(
        Model,
        num_replicas=num_replicas,
        max_ongoing_requests=calls,
        ray_actor_options=resources,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        logging_config=quiet,
        user_config={POLICY: policy_text},
    ).options(**SAME_CODE)
    ingress = serve.deployment(
        Ingress,
        max_ongoing_requests=MAX_CONNECTIONS,
        max_queued_requests=MAX_CONNECTIONS,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=HEALTH_PERIOD_S,
        logging_config=quiet,
        user_config={POLICY: policy_text},
    ).options(**SAME_CODE)
    return ingress.bind(source.policy, tokenizer_json, context, model.bind(source))
