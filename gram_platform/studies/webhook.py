"""Tells a webhook how a submission ended (`--notify URL`), in JSON that Slack shows, too."""

import json
import re
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from gram_platform.config.endings import DONE, FAILED, TIME_IS_UP
from gram_platform.config.identity import invalid, masked, printable
from gram_platform.config.terminal import one_line

# The most seconds that the end of a submission waits for a webhook.
TIMEOUT_S = 10.0
# What has happened, by the submission's exit code.
EVENTS = {DONE: "done", FAILED: "failed", TIME_IS_UP: "limit reached"}
# Behind an address's host: at many services the key that lets anybody post.
BEHIND_HOST = re.compile(r"(?<![:/])[/?#].*", re.DOTALL)


def require_webhook(url: str) -> None:
    """ValueError, which names no more than the host, for a text that is neither empty nor a
    webhook's address."""
    try:
        parts = urlsplit(url)
        is_address = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:
        is_address = False
    if url and not (is_address and url.isascii() and not re.search(r"[\s@'\"\x00-\x1f\x7f]", url)):
        expected = (
            "a webhook's address such as https://host/path, without a user, a password, quotes and"
            " blanks"
        )
        raise invalid("notify", BEHIND_HOST.sub("/***", masked(url)), expected)


def message_of(
    study: str, storage: str, code: int, what: str, num_failures: int, verdicts: Mapping[str, int]
) -> dict[str, object]:
    """Returns what a webhook gets, without secrets.

    `storage`: its place, of which the message has the name alone; `code`: the submission's exit
    code; `what`: how many nodes and trials have ended, or the error that ended the submission;
    `verdicts`: the number of claims of each.
    """
    storage, event = masked(storage).rstrip("/").rpartition("/")[2], EVENTS[code]
    what = one_line("; ".join(what.splitlines()))
    claims = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    failures = f"{num_failures} failed or blocked" if num_failures else ""
    text = ". ".join(
        filter(
            None, (f"{study} in {storage}: {event}", what, failures, claims and f"Claims: {claims}")
        )
    )
    named = {"event": event, "study": study, "storage": storage, "counts": what}
    return {"text": text, **named, "failures": num_failures, "verdicts": dict(verdicts)}


def post(url: str, message: Mapping[str, object]) -> str:
    """Posts a message as JSON; returns why that failed, else "".

    Waits at most TIMEOUT_S, and raises nothing.
    """
    reasons = [f"no answer within {TIMEOUT_S:g} s"]
    # None follows a redirect: the request would go on as a GET without the message, to a host that
    # nobody named.
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    request = Request(url, json.dumps(message).encode(), {"Content-Type": "application/json"})

    def send() -> None:
        try:
            # It ends the thread; what is said is decided by the wait below.
            with opener.open(request, timeout=2 * TIMEOUT_S):
                reasons.append("")
        except Exception as error:
            # Whatever it is: a message costs no results.
            reasons.append(one_line(printable(str(error))) or type(error).__name__)

    # A thread, since a host that is looked up, or that answers letter by letter, has no time-out.
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(TIMEOUT_S)
    return reasons[-1]
