"""A request that is not served: its status, a code for programs, and words for people that repeat nothing it said."""

from collections.abc import Mapping


class Refusal(Exception):
    """Becomes the answer {"error": {"message", "type", "code", "param"}}, in the form of OpenAI's API."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None, retry_after_s: int = 0):
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after_s = retry_after_s

    def body(self) -> dict:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}}

    def headers(self) -> Mapping[str, str]:
        headers = {"Retry-After": str(self.retry_after_s)} if self.retry_after_s else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def bad_request(param: str, allowed: str, code: str = "invalid_value") -> Refusal:
    return Refusal(400, code, f"{param}: expected {allowed}", param)


def unknown_model() -> Refusal:
    """The same for a profile that exists and is not granted as for one that does not exist."""
    return Refusal(
        404, "model_not_found", "this token has no model of that name; GET /v1/models lists its own", "model"
    )


def busy() -> Refusal:
    return Refusal(429, "busy", "too many requests wait for the model; try again later", retry_after_s=1)


def late() -> Refusal:
    return Refusal(504, "deadline", "the request's time was over before the model had finished it")


def unavailable() -> Refusal:
    return Refusal(503, "unavailable", "the model is not there at the moment; try again later", retry_after_s=5)


def interrupted() -> Refusal:
    return Refusal(503, "interrupted", "the model's process ended during the request; send it again", retry_after_s=5)
