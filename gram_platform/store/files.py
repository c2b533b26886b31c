"""Defines sealed JSON, retries, and the base class of local and remote folders.

A sealed JSON object contains its own SHA-256. Files are written completely or not at all. A
read-only folder rejects all changes. A name is one path component of safe characters, so no path
can lead out of the storage.
"""

import contextlib
import errno
import functools
import hashlib
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gram_platform.config.endings import Unavailable
from gram_platform.config.identity import canonical_json, invalid
from gram_platform.config.plain import MOST_JSON_BYTES, from_plain, parse_json
from gram_platform.config.terminal import warn

Value = TypeVar("Value")

HASHES = "hashes.json"
_HASH = re.compile("[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+.=@-]{0,199}")


class CorruptFile(ValueError):
    """Raised if a file is damaged: its hash is wrong or its content is invalid."""


def safe_name(field: str, name: str) -> str:
    """Returns `name` if it is a safe path component. Otherwise raises ValueError about `field`."""
    if not is_safe_name(name):
        allowed = "at most 200 letters, digits and _ + . = @ -, the first a letter, digit or _"
        raise invalid(field, name, allowed)
    return name


def is_safe_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def seal(fields: Mapping) -> bytes:
    """Returns `fields` as canonical JSON, with an added `sha256` that hashes the other fields."""
    digest = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    return (canonical_json({**fields, "sha256": digest}) + "\n").encode()


def unseal(data: bytes) -> dict:
    """Parses the output of `seal`, including `sha256`. Raises CorruptFile for any other input."""
    try:
        fields = parse_json(data, dict)
        intact = seal({k: v for k, v in fields.items() if k != "sha256"}) == data
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFile(f"not a sealed JSON object: {error}") from error
    if not intact:
        raise CorruptFile("its content does not match its sha256")
    return fields


def unseal_if_sealed(data: bytes) -> dict:
    """Parses a JSON object and drops its field `sha256`. Raises CorruptFile if the hash is wrong.

    Accepts old files, which have no `sha256`.
    """
    fields = parse_json(data, dict)
    # A hash in another field means that the name `sha256` was damaged.
    if "sha256" in fields or any(_HASH.fullmatch(str(value)) for value in fields.values()):
        unseal(data)
    return {key: value for key, value in fields.items() if key != "sha256"}


class Folder:
    """A local or remote folder. `path` is a directory, or a URL without its protocol."""

    path: str
    writable: bool
    child: Callable[..., Any]
    read: Callable[..., bytes]
    write: Callable[..., None]
    write_with: Callable[[str, Callable[[str], object]], str]
    create: Callable[[str, bytes], bool]
    size: Callable[[str], int]
    exists: Callable[[str], bool]
    list: Callable[[], list[str]]
    remove: Callable[[str], None]
    rename: Callable[[str, str], None]
    local_copy: Callable[[str], contextlib.AbstractContextManager[str]]
    lock: Callable[[str], contextlib.AbstractContextManager[None]]

    def file(self, name: str) -> str:
        return f"{self.path}/{safe_name('file', name)}"

    def address(self, name: str) -> str:
        """Returns a file's path, or in a remote folder its full URL with the protocol."""
        return self.file(name)

    def read_json(self, name: str, kind: Any = dict) -> Any:
        """Reads a JSON file as a value of type `kind`. Returns None if the file does not exist.

        Raises CorruptFile for invalid content. The error names the file and the field.
        """
        return self._read_as(name, lambda data: parse_json(data, kind))

    def read_sealed(self, name: str, kind: Any = dict) -> Any:
        """Reads a file as `read_json` does. Also raises CorruptFile if the `sha256` is wrong."""
        return self._read_as(name, lambda data: from_plain(kind, unseal(data)))

    def _read_as(self, name: str, read: Callable[[bytes], Value]) -> Value | None:
        try:
            data = self.read(name, MOST_JSON_BYTES + 1)
        except FileNotFoundError:
            return None
        try:
            return read(data)
        except ValueError as error:
            raise CorruptFile(f"{self.path}/{name}: {error}") from error

    def read_spare(self, name: str, kind: Any = dict) -> Any:
        """Reads an optional JSON file. Returns {} if it is absent or damaged."""
        try:
            return self.read_json(name, kind) or {}
        except CorruptFile:
            return {}

    def read_or_set_aside(self, name: str, kind: Any) -> Any:
        """Reads a file with `unseal_if_sealed`. Returns {} if the file is absent or damaged.

        Sets a damaged file aside.
        """
        try:
            return self._read_as(name, lambda data: from_plain(kind, unseal_if_sealed(data))) or {}
        except CorruptFile as error:
            self.set_aside(name, error)
            return {}

    def write_json(self, name: str, value: object, durable: bool = True) -> None:
        self.write(name, (canonical_json(value) + "\n").encode(), durable=durable)

    def write_sealed(self, name: str, fields: Mapping, durable: bool = True) -> None:
        self.write(name, seal(fields), durable=durable)

    def write_whole(self, files: Mapping[str, bytes]) -> None:
        """Writes `files`, then a file with their hashes. `require_whole` verifies these."""
        self.remove(HASHES)
        for name, data in files.items():
            self.write(name, data)
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        self.write_sealed(HASHES, {"files": hashes})

    def require_whole(self) -> None:
        """Verifies files written by `write_whole`.

        Raises CorruptFile if one was changed, and FileNotFoundError if one is missing.
        """
        for name, digest in (self.read_sealed(HASHES) or {"files": {}})["files"].items():
            if hashlib.sha256(self.read(name)).hexdigest() != digest:
                raise CorruptFile(f"{self.file(name)} does not have its SHA-256: submit again")

    def set_aside(self, name: str, reason: object, fault: str = "corrupted") -> None:
        """Renames a damaged or outdated file or directory to `<name>.corrupt-<n>`, and warns.

        The warning contains `fault` and `reason`. If the folder is read-only, only warns.
        """
        if self.writable:
            number = next(n for n in range(1, 10**6) if not self.exists(f"{name}.corrupt-{n}"))
            # Another process may have set the file aside.
            with contextlib.suppress(FileNotFoundError):
                self.rename(name, f"{name}.corrupt-{number}")
            fault += " and set aside"
        warn(f"{self.path}/{name} is {fault}: {reason}", stacklevel=2)

    def remove_temporaries(self, older_than_s: float = 0.0) -> None:
        """Removes temporary files older than `older_than_s` seconds. Skips object stores."""

    def require_rights(self) -> None:
        """Raises PermissionError if this user cannot write here. Does not check object stores."""

    def _check_writable(self) -> None:
        if not self.writable:
            raise invalid("storage", self.path, "a store opened with Store.open_for_writing()")


PATIENCE_S = 300.0
FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
# Minimum time between two warnings of a process.
SILENCE_S = 600.0

_NAMES = """
    EIO ESTALE EAGAIN EBUSY EINTR ETIMEDOUT EPIPE ECONNRESET ECONNREFUSED ECONNABORTED ENOTCONN
    ESHUTDOWN ENETDOWN ENETUNREACH ENETRESET EHOSTDOWN EHOSTUNREACH EREMOTEIO
"""
TRANSIENT_ERRNOS = frozenset(
    getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name)
)
# HTTP statuses of time-outs, throttling and server errors.
TRANSIENT_STATUSES = {"408", "425", "429", "500", "502", "503", "504"}
# Connection errors of the libraries that fsspec's drivers use (aiohttp, requests, botocore,
# azure-core). Compared by name, because the libraries need not be installed.
_CLASSES = """
    ClientConnectionError ClientPayloadError ConnectTimeoutError ConnectionError
    EndpointConnectionError IncompleteReadError ReadTimeoutError ServiceRequestError
    ServiceResponseError Timeout
"""
TRANSIENT_CLASSES = frozenset(_CLASSES.split())


class StorageAway(Unavailable, OSError):
    """Raised if the storage still fails after all retries of `keep_trying`."""


_last_warned = -SILENCE_S


def is_transient(error: BaseException) -> bool:
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
        return True
    statuses = {str(getattr(error, name, "")) for name in ("status", "status_code", "code")}
    classes = {cls.__name__ for cls in type(error).__mro__}
    return not TRANSIENT_STATUSES.isdisjoint(statuses) or not TRANSIENT_CLASSES.isdisjoint(classes)


def keep_trying(work: Callable[[], Value], place: str) -> Value:
    """Returns `work()`. Retries it on transient errors for up to `PATIENCE_S` seconds.

    If the errors last longer, raises StorageAway. Its message and the warnings about retries
    contain `place` and the last error.
    """
    deadline, longest_s = time.monotonic() + PATIENCE_S, FIRST_DELAY_S
    while True:
        # Random, so that clients do not retry together.
        delay_s = longest_s * random.uniform(0.5, 1.0)
        try:
            return work()
        except Exception as error:
            if not is_transient(error):
                raise
            failure = f"{place}: {type(error).__name__}: {error}"
            if time.monotonic() + delay_s > deadline:
                text = f"the storage has failed for {PATIENCE_S:.0f} s ({failure})"
                raise StorageAway(text) from error
            _warn(failure)
        time.sleep(delay_s)
        longest_s = min(2 * longest_s, LONGEST_DELAY_S)


def with_retries(method: Callable) -> Callable:
    """Decorator that retries a folder's method on transient errors."""

    @functools.wraps(method)
    def retry(self, *args, **kwargs):
        return keep_trying(lambda: method(self, *args, **kwargs), self.path)

    return retry


def _warn(failure: str) -> None:
    global _last_warned
    if time.monotonic() - _last_warned >= SILENCE_S:
        _last_warned = time.monotonic()
        warn(f"the storage fails ({failure}); retried for up to {PATIENCE_S:.0f} s", stacklevel=4)
