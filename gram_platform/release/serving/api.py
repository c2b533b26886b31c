"""Handles HTTP requests, with JSON or streaming responses.

    POST /v1/completions   one completion, as in OpenAI's API; its `model` names a profile
    GET  /v1/models        the API token's profiles
    GET  /healthz          200 while the model is ready and the policy confirmed, otherwise 503
    GET  /metrics          Prometheus metrics of the token's profiles, if the policy allows it
    GET  /                 the samples page

API tokens are accepted only as `Authorization: Bearer ...`. Rejected requests are logged with the
token's name, the HTTP status and an error code, but no text from the caller.
"""

import base64
import functools
import hashlib
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from gram_platform.release.serving.answers import Answer, Completions, Metrics
from gram_platform.release.serving.batch import GenerationRequest
from gram_platform.release.serving.policy import (
    NotGranted,
    Policy,
    TokenRule,
    is_recent,
    token_digest,
)
from gram_platform.release.serving.requests import (
    COMPLETIONS,
    HEALTH,
    MAX_BODY_BYTES,
    MAX_TOKEN_LENGTH,
    METRICS,
    MODELS,
    PAGE,
    Refusal,
    parse_request,
    refusal,
)
from gram_platform.release.serving.text import Vocabulary

# Ray Serve writes the logs of `ray.serve` to files.
logger = logging.getLogger("ray.serve.gram")
WRONG_METHOD = ("method_not_allowed", "this path does not accept this method")
OTHER_ERROR = ("http_error", "the server does not understand this request")
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Api:
    """Serves the profiles of a policy over HTTP. `completions` generates the text."""

    def __init__(
        self, policy: Policy, vocabulary: Vocabulary, completions: Completions, max_requests: int
    ):
        self.policy, self.vocabulary, self.completions = policy, vocabulary, completions
        # The most open requests per token, and their number by token name.
        self.max_requests, self._num_open = max_requests, Counter[str]()
        # The `time.monotonic` of the policy's confirmation; infinite without a keeper.
        self.confirmed_at, self.num_left_out = math.inf, 0
        self.metrics = Metrics()
        self.started = int(time.time())

    def app(self) -> Starlette:
        readers = {MODELS: self.models, HEALTH: self.health, METRICS: self.scrape, PAGE: self.page}
        routes = [Route(path, read, methods=["GET"]) for path, read in readers.items()]
        routes.append(Route(COMPLETIONS, self.complete, methods=["POST"]))
        handlers = {Refusal: self._refuse, HTTPException: self._no_route, Exception: self._fail}
        # Nobody reads this response.
        handlers[ClientDisconnect] = lambda *_: Response()
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False
        return app

    async def complete(self, request: Request) -> Response:
        digest, rule = self._caller(request)
        _require_json(request)
        parsed = parse_request(await _body(request))
        try:
            grant = self.policy.grant(digest, parsed.profile)
        except NotGranted:
            raise refusal("model_not_found") from None
        prompt = self.vocabulary.prompt_ids(parsed)
        generation = GenerationRequest(
            prompt, parsed.max_tokens, parsed.temperature, parsed.top_p, parsed.seed
        )
        answer = Answer(
            self.completions, digest, grant, generation, self.vocabulary, parsed.stop, self.metrics
        )
        if not parsed.stream:
            async with aclosing(self._texts(answer, rule, whole=True)) as parts:
                text = "".join([part async for part in parts])
            body = _body_of(answer, text, answer.finish_reason) | {"usage": answer.usage()}
            return JSONResponse(body, headers=NO_STORE)
        events = self._events(answer, rule, parsed.stream_usage)
        # Awaited before the response starts, so that a refusal can still set the status.
        await anext(events)
        headers = NO_STORE | {"X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def models(self, request: Request) -> Response:
        _, rule = self._caller(request)
        shared = {"object": "model", "created": self.started, "owned_by": "gram"}
        models = [{"id": name, **shared, "default": name == rule.default} for name in rule.profiles]
        return JSONResponse({"object": "list", "data": models}, headers=NO_STORE)

    async def health(self, _: Request) -> Response:
        is_confirmed = is_recent(self.confirmed_at)
        if is_confirmed and await self.completions.is_ready():
            errors = (
                f"the policy's file has errors: {self.num_left_out} of its parts are not in force"
            )
            text = f"ok, but {errors}\n" if self.num_left_out else "ok\n"
            return PlainTextResponse(text, headers=NO_STORE)
        refused = refusal("unavailable" if is_confirmed else "policy_unconfirmed")
        return JSONResponse(refused.body(), refused.status, NO_STORE | refused.headers())

    async def scrape(self, request: Request) -> Response:
        _, rule = self._caller(request)
        if not rule.metrics:
            raise Refusal(403, "no_metrics", "this token may not read the metrics")
        self.metrics.policy_age.set(max(0.0, time.monotonic() - self.confirmed_at))
        self.metrics.policy_refused.set(self.num_left_out)
        text = self.metrics.text(rule.profiles)
        return Response(text, media_type="text/plain; version=0.0.4", headers=NO_STORE)

    async def page(self, _: Request) -> Response:
        html, policy = page_and_policy()
        headers = NO_STORE | {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        return HTMLResponse(html, headers=headers)

    async def _texts(self, answer: Answer, rule: TokenRule, whole: bool) -> AsyncIterator[str]:
        allowed = rule.max_requests or self.max_requests
        if self._num_open[rule.name] >= allowed:
            state = f"this token has {allowed} requests at work or waiting, and may have no more"
            raise Refusal(429, "token_limit", f"{state}; wait for one to end")
        self._num_open[rule.name] += 1
        try:
            async with aclosing(answer.texts(whole)) as parts:
                async for text in parts:
                    yield text
        finally:
            self._num_open[rule.name] -= 1

    async def _events(self, answer: Answer, rule: TokenRule, usage: bool) -> AsyncIterator[str]:
        """Yields "" once the request is accepted, then server-sent events.

        Raises a refusal before the first item, and sends a later one as an event. If `usage` is
        True, sends token counts at the end (OpenAI's option `include_usage`).
        """
        no_usage = {"usage": None} if usage else {}
        async with aclosing(self._texts(answer, rule, whole=False)) as parts:
            yield await anext(parts)
            try:
                async for text in parts:
                    if text:
                        yield _event(_body_of(answer, text, None) | no_usage)
                last = _body_of(answer, "", answer.finish_reason)
                counts = _event(last | {"choices": [], "usage": answer.usage()}) if usage else ""
                yield f"{_event(last | no_usage)}{counts}data: [DONE]\n\n"
            except Refusal as refused:
                self._count(refused, rule.name)
                yield _event(refused.body())

    def _caller(self, request: Request) -> tuple[str, TokenRule]:
        if not is_recent(self.confirmed_at):
            raise refusal("policy_unconfirmed")
        headers = request.headers.getlist("authorization")
        scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
        is_short = token.isascii() and 0 < len(token) <= MAX_TOKEN_LENGTH
        is_token = scheme.lower() == "bearer" and is_short
        digest = token_digest(token if is_token else "")
        rule = self.policy.holder(digest)
        if rule is None or not is_token:
            raise Refusal(401, "invalid_token", "send one known token: Authorization: Bearer TOKEN")
        request.state.holder = rule.name
        return digest, rule

    async def _refuse(self, request: Request, refused: Refusal) -> Response:
        self._count(refused, getattr(request.state, "holder", "nobody known"))
        return JSONResponse(refused.body(), refused.status, NO_STORE | refused.headers())

    async def _no_route(self, request: Request, error: HTTPException) -> Response:
        status = error.status_code
        other = Refusal(status, *(WRONG_METHOD if status == 405 else OTHER_ERROR))
        refused = refusal("not_found") if status == 404 else other
        self._count(refused, "nobody known")
        return JSONResponse(refused.body(), refused.status, NO_STORE | dict(error.headers or {}))

    async def _fail(self, request: Request, _: Exception) -> Response:
        return await self._refuse(
            request, Refusal(500, "internal", "internal error; the server's log has the cause")
        )

    def _count(self, refused: Refusal, holder: str) -> None:
        logger.warning("refused: holder=%s status=%d code=%s", holder, refused.status, refused.code)
        self.metrics.refused.labels(str(refused.status), refused.code).inc()


def _require_json(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Refusal(415, "unsupported_media_type", "the body must be application/json in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "unsupported_encoding", "the body must not be compressed")


async def _body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise refusal("body_too_large")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise refusal("body_too_large")
    return bytes(body)


def _body_of(answer: Answer, text: str, finish_reason: str | None) -> dict:
    return {
        "id": answer.id,
        "object": "text_completion",
        "created": answer.created,
        "model": answer.grant.profile,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}],
    }


def _event(body: dict) -> str:
    return f"data: {json.dumps(body)}\n\n"


@functools.cache
def page_and_policy() -> tuple[str, str]:
    """Returns (HTML of the samples page, Content-Security-Policy that permits only its code)."""
    page = resources.files("gram_platform.release.serving") / "page.html"
    html = page.read_text(encoding="utf-8")
    return html, (
        f"default-src 'none'; script-src {_hash_of(html, 'script')};"
        f" style-src {_hash_of(html, 'style')}; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    )


def _hash_of(html: str, tag: str) -> str:
    content = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL).group(1)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
