"""Checks whether a dataset can be read, and retries when servers do not answer.

The `datasets` library hides the cause of an error. If the Hub is overloaded or a token is missing,
it reports that the dataset was not found.
"""

import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from socket import gethostname
from typing import TypeVar
from urllib.parse import quote, urlsplit

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say
from gram_platform.corpora.recipe import BUILDERS, HubRow

TOKEN = "HF_TOKEN"
ANSWER_WITHIN_S = 10
# The pauses before retries. Before the first, `datasets` itself has retried for minutes.
PAUSES_S = (2.0, 10.0, 30.0)
REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
OVERLOADED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
# Base classes of connection errors and time-outs in Python, httpx and aiohttp.
BROKEN = {"ConnectionError", "TimeoutError", "TransportError", "ClientError"}
# Final errors, although one of their causes or base classes is in BROKEN.
FINAL = {"OfflineModeIsEnabled", "UnsupportedProtocol", "PermissionError"}

Answer = TypeVar("Answer")


def require_readable(row: HubRow, all_files: bool = False) -> None:
    """Asks the Hub, or the servers of a row's files, whether the row can be read.

    By default, only the first file's server is asked. With `all_files`, every file is checked.
    Raises ValueError if access is denied, if the request cannot be sent, or if `all_files` is set
    and a file is missing. Raises Unavailable if a server is overloaded or does not answer. Accepts
    every other HTTP status, because Hub mirrors respond differently.
    """
    from huggingface_hub.utils import get_session

    final = (*REFUSED, HTTPStatus.NOT_FOUND) if all_files and _urls(row) else REFUSED
    for url, headers in _questions(row, all_files):
        try:
            with get_session().stream(
                "GET", url, headers=headers, timeout=ANSWER_WITHIN_S
            ) as answer:
                status = answer.status_code
        except Exception as error:
            # HTTP clients, sockets and TLS raise different errors.
            kind = ValueError if FINAL & _kinds(error) else Unavailable
            raise kind(
                f"{_cannot_be_read(row)}: {urlsplit(url).hostname} does not answer ({error})"
            ) from error
        text = f"{_cannot_be_read(row)}: {url} has the status {status}"
        if _passes(status):
            raise Unavailable(text)
        if status in final:
            raise ValueError(text + _advice(row))


def _questions(row: HubRow, all_files: bool) -> Iterator[tuple[str, dict[str, str]]]:
    import datasets
    from huggingface_hub import get_token

    if row.dataset in BUILDERS:
        for url in _urls(row)[: None if all_files else 1]:
            yield url, {"Range": "bytes=0-0"}
        return
    token = get_token() or ""
    if stray := {sign for sign in token if not (sign.isascii() and sign.isprintable())}:
        raise invalid(
            TOKEN,
            "".join(sorted(stray)),
            "a token without such characters, as quotation marks or a BOM",
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    yield f"{datasets.config.HF_ENDPOINT}/api/datasets/{quote(row.dataset)}/auth-check", headers


def _urls(row: HubRow) -> list[str]:
    files = row.files if row.dataset in BUILDERS else ()
    return [file for file in files if urlsplit(file).scheme in ("http", "https")]


def row_error(row: HubRow, error: Exception) -> Exception:
    """Turns a `datasets` error into Unavailable if a retry may help, otherwise into ValueError."""
    lines = str(error).strip().splitlines()
    reason = ": ".join([type(error).__name__, *(line[:200].rstrip(".") for line in lines[:1])])
    text = f"{_cannot_be_read(row)}: {reason}"
    is_missing = isinstance(error, FileNotFoundError)
    # A file that is missing on another server was there before, so a retry may succeed.
    if is_passing(error) or (is_missing and _urls(row)):
        return Unavailable(text)
    return ValueError(text + _advice(row) if is_missing or _status(error) in REFUSED else text)


def _cannot_be_read(row: HubRow) -> str:
    names = filter(None, (row.dataset, row.config, row.data_dir))
    return f"hub dataset {' '.join(names)} at {row.revision} cannot be read"


def _advice(row: HubRow) -> str:
    import datasets
    from huggingface_hub import get_token

    if row.dataset in BUILDERS:
        return ""
    has = "does not open it" if get_token() else "is not set"
    page = f"{datasets.config.HF_ENDPOINT}/datasets/{row.dataset}"
    advice = f"If {page} exists, accept its terms there, and set {TOKEN} to a token of that account"
    return f". {advice} where text is fetched, before Ray starts there: on {gethostname()} it {has}"


def is_passing(error: BaseException) -> bool:
    """Returns True if the error shows that a server is unreachable or overloaded."""
    if (status := _status(error)) is not None:
        return _passes(status)
    return bool(BROKEN & _kinds(error)) and not FINAL & _kinds(error)


def _passes(status: int) -> bool:
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in OVERLOADED


def _status(error: BaseException) -> int | None:
    for cause in _causes(error):
        for source in (cause, getattr(cause, "response", None)):
            status = getattr(source, "status_code", getattr(source, "status", None))
            if isinstance(status, int):
                return status
    return None


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def retry_unavailable(work: Callable[[], Answer], progress: Callable[[], object] = int) -> Answer:
    """Returns `work()`. If it raises Unavailable, retries after each pause in PAUSES_S.

    If `progress()` has changed since the last failure, starts over with the first pause.
    """
    pauses, before = iter(PAUSES_S), progress()
    while True:
        try:
            return work()
        except Unavailable as error:
            if progress() != before:
                pauses, before = iter(PAUSES_S), progress()
            pause = next(pauses, None)
            if pause is None:
                raise
            say(f"{error}: asking again in {pause:.0f} s", sys.stderr)
            time.sleep(pause)
