"""Storage that fails for a while: which errors are worth another try, and for how long.

Object stores throttle and drop connections; shared mounts lose their server. Such errors are tried again with
growing, jittered delays for `PATIENCE_S`, and said once as a warning. Every other error is the caller's at once: what
is missing, forbidden, full or corrupted stays so.
"""

import errno
import functools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

PATIENCE_S = 300.0
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
SILENCE_S = 600.0  # between two warnings of one process

_NAMES = "EIO ESTALE EAGAIN EBUSY EINTR ETIMEDOUT EPIPE ECONNRESET ECONNREFUSED ECONNABORTED ENOTCONN ESHUTDOWN "
_NAMES += "ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH EREMOTEIO"
TRANSIENT_ERRNOS = frozenset(getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name))
TRANSIENT_STATUSES = {"408", "425", "429", "500", "502", "503", "504"}  # HTTP: timeouts, throttling, servers in trouble
# connection errors of the libraries under fsspec's drivers (aiohttp, requests, botocore, azure-core), which need not
# be installed and are not all OSErrors
TRANSIENT_CLASSES = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "ConnectTimeoutError",
        "ConnectionError",
        "EndpointConnectionError",
        "IncompleteReadError",
        "ReadTimeoutError",
        "ServiceRequestError",
        "ServiceResponseError",
        "Timeout",
    }
)

Value = TypeVar("Value")
_last_said = -SILENCE_S


def is_transient(error: BaseException) -> bool:
    """Whether the same call may well succeed a little later."""
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
        return True
    statuses = {str(getattr(error, name, "")) for name in ("status", "status_code", "code")}
    classes = {cls.__name__ for cls in type(error).__mro__}
    return not TRANSIENT_STATUSES.isdisjoint(statuses) or not TRANSIENT_CLASSES.isdisjoint(classes)


def keep_trying(work: Callable[[], Value], place: str) -> Value:
    """`work()`, tried again while it fails transiently, for `PATIENCE_S`; then its last error. `place` goes into the
    warning.
    """
    deadline = time.monotonic() + PATIENCE_S
    for delay_s in _delays():
        try:
            return work()
        except Exception as error:
            if not is_transient(error) or time.monotonic() + delay_s > deadline:
                raise
            _say(place, error)
        time.sleep(delay_s)
    raise AssertionError("delays never end")


def persistent(method: Callable) -> Callable:
    """A method of a folder, tried again as above."""

    @functools.wraps(method)
    def trying(self, *args, **kwargs):
        return keep_trying(lambda: method(self, *args, **kwargs), self.path)

    return trying


def _delays() -> Iterator[float]:
    """Doubling up to `LONGEST_DELAY_S`, each between half and all of it, so that many clients spread out."""
    delay_s = FIRST_DELAY_S
    while True:
        yield delay_s * random.uniform(0.5, 1.0)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)


def _say(place: str, error: Exception) -> None:
    global _last_said
    if time.monotonic() - _last_said < SILENCE_S:
        return
    _last_said = time.monotonic()
    text = f"the storage fails ({place}: {type(error).__name__}: {error}); tried again for up to {PATIENCE_S:.0f} s"
    warnings.warn(text, RuntimeWarning, stacklevel=4)
