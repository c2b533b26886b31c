"""Parses completion requests and defines the errors for rejected requests."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
HEALTH, METRICS, PAGE = "/healthz", "/metrics", "/"
MAX_BODY_BYTES = 256 * 1024
DEFAULT_MAX_TOKENS = 16
MAX_TOKEN_LENGTH = 256
MAX_STOPS, MAX_STOP_LENGTH = 4, 256
FIELDS = ("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream")
FIELDS += ("stream_options", "n", "user")
# Unsupported OpenAI fields, with the values that are accepted and ignored.
NEUTRAL = {
    "best_of": (1, None),
    "echo": (False, None),
    "frequency_penalty": (0, None),
    "logit_bias": ({}, None),
    "logprobs": (None,),
    "presence_penalty": (0, None),
    "suffix": ("", None),
}


@dataclass(frozen=True)
class CompletionRequest:
    """The fields of a request. A field that the request omits has its default."""

    prompt: str | tuple[int, ...]
    profile: str | None
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    stream: bool
    stream_usage: bool = False


def parse_request(body: bytes) -> CompletionRequest:
    """Parses a request body. Raises Refusal 400 if it is invalid."""
    fields = _object(body)
    for name, given in fields.items():
        if name in NEUTRAL:
            if not any(given is value or _same(given, value) for value in NEUTRAL[name]):
                raise bad_request(name, "no value, since it is not supported here", "unsupported")
        elif name not in FIELDS:
            raise Refusal(
                400,
                "unknown_field",
                f"the body has an unknown field; known are {', '.join(FIELDS)}",
            )
    if fields.get("n", 1) not in (1, None) or isinstance(fields.get("n"), bool):
        raise bad_request("n", "1", "unsupported")
    seed = _number(fields, "seed", None, -(2**63), 2**63 - 1)
    top_p = _number(fields, "top_p", 1.0, 0, 1, float)
    if top_p == 0.0:
        raise bad_request("top_p", "above 0; temperature 0 takes the likeliest token")
    stream = bool(_optional(fields, "stream", bool, "true or false"))
    return CompletionRequest(
        prompt=_prompt(fields),
        profile=_optional(fields, "model", str, "a text"),
        max_tokens=_number(fields, "max_tokens", DEFAULT_MAX_TOKENS, 1, 2**31),
        temperature=_number(fields, "temperature", 1.0, 0, 100, float),
        top_p=top_p,
        seed=secrets.randbits(63) if seed is None else seed,
        stop=_stops(fields),
        stream=stream,
        stream_usage=_stream_usage(fields, stream),
    )


def _object(body: bytes) -> Mapping:
    try:
        fields = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        raise Refusal(
            400, "invalid_json", "the body is not valid JSON in UTF-8, or it repeats a name"
        ) from None
    if not isinstance(fields, Mapping):
        raise Refusal(400, "invalid_json", "the body is not a JSON object")
    return fields


def _unique(pairs: list[tuple[str, object]]) -> dict:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is repeated")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _same(value: object, other: object) -> bool:
    return type(value) in (int, float, str, dict) and not isinstance(other, bool) and value == other


def _stream_usage(fields: Mapping, stream: bool) -> bool:
    options = _optional(fields, "stream_options", dict, "an object") or {}
    if options.keys() - {"include_usage"} or (options and not stream):
        raise bad_request("stream_options", "include_usage alone, beside stream")
    return bool(_optional(options, "include_usage", bool, "true or false"))


def _prompt(fields: Mapping) -> str | tuple[int, ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise bad_request("prompt", "text without lone surrogates")
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise bad_request("prompt", "a text, a list of token ids, or a list of one of them")


def _optional(fields: Mapping, name: str, kind: type, expected: str) -> Any:
    value = fields.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise bad_request(name, expected)


def _number(
    fields: Mapping, name: str, default: float | None, low: int, high: int, kind: type = int
) -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) not in (int, kind) or not low <= value <= high:
        expected = "an integer" if kind is int else "a number"
        raise bad_request(name, f"{expected} from {low} to {high}")
    return kind(value)


def _stops(fields: Mapping) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    is_list = isinstance(stops, list) and len(stops) <= MAX_STOPS
    if not is_list or not all(
        isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in stops
    ):
        raise bad_request("stop", f"at most {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)


# (status, message, wrong field if any) by code. Messages contain no text from callers.
COMMON_REFUSALS = {
    # The message does not reveal whether the profile exists.
    "model_not_found": (
        404,
        "this token has no such model; GET /v1/models lists its models",
        "model",
    ),
    "not_found": (404, "no such path"),
    "body_too_large": (413, f"a body has at most {MAX_BODY_BYTES} bytes"),
    "busy": (429, "too many requests wait for the model; try again later"),
    "unavailable": (503, "the model is unavailable at the moment; try again later"),
    "policy_unconfirmed": (503, "nobody has confirmed the policy for too long; ask the operator"),
    "interrupted": (503, "the model's process ended during the request; send it again"),
    "deadline": (504, "the model did not finish before the request's deadline"),
}
RETRY_AFTER_S = {429: "1", 503: "5"}


class Refusal(Exception):
    """An error response in OpenAI's format. `message` never contains text from the caller."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None):
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def body(self) -> dict:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}
        }

    def headers(self) -> Mapping[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        after_s = RETRY_AFTER_S.get(self.status)
        return {"Retry-After": after_s} if after_s else {}


def refusal(code: str) -> Refusal:
    status, *fields = COMMON_REFUSALS[code]
    return Refusal(status, code, *fields)


def bad_request(param: str, expected: str, code: str = "invalid_value") -> Refusal:
    return Refusal(400, code, f"{param}: expected {expected}", param)
