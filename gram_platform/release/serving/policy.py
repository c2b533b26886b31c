"""Reads, checks and writes a policy: a file that maps tokens to profiles, and profiles to modules.

    [profiles.open]
    modules = []                                # core alone

    [profiles.medicine]
    modules = ["virology"]

    [profiles.half]
    modules = { virology = 0.5, lisp = 1.0 }    # weights, as in a view

    [[tokens]]
    name = "alice"                              # for people and logs
    sha256 = "..."                              # hash of the token, which is stored nowhere
    profiles = ["open", "medicine"]
    default = "medicine"                        # required with several profiles
    metrics = true                              # may read /metrics; default false
    max_requests = 8                            # at work or waiting at once; default: what `gram serve` says

A token is 256 random bits, so nobody can guess it from its plain SHA-256, which needs no salt.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gram_platform.config.crash_safe import sync, temporary_beside
from gram_platform.config.identity import invalid, local_path, require_int, require_name, require_real

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")  # ASCII only, because callers type it: no look-alikes
DIGEST = re.compile(r"[0-9a-f]{64}")
LEASE_S = 10.0  # a policy that nobody has confirmed for longer grants nothing
TOKEN_FIELDS = ("name", "sha256", "profiles", "default", "metrics", "max_requests")


class NotGranted(Exception):
    """Raised for an unknown token or a profile that it lacks; does not say whether the profile exists."""


@dataclass(frozen=True)
class Grant:
    """Says what one request may use. Only `Policy.grant` makes one."""

    holder: str  # the token's name
    profile: str
    weights: tuple[tuple[str, float], ...]  # (module, weight), sorted, zeros dropped


@dataclass(frozen=True)
class TokenRule:
    """Holds one token's entry of the policy."""

    name: str
    sha256: str
    profiles: tuple[str, ...]
    default: str
    metrics: bool
    max_requests: int | None  # None: as many as the server's default


@dataclass(frozen=True)
class Policy:
    """Holds the validated file."""

    profiles: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    tokens: tuple[TokenRule, ...]

    def holder(self, digest: str) -> TokenRule | None:
        """Returns the token's rule. Compares all rules, each in constant time."""
        found = None
        for rule in self.tokens:
            if hmac.compare_digest(rule.sha256.encode(), digest.encode()):
                found = rule
        return found

    def grant(self, digest: str, profile: str | None = None) -> Grant:
        """Grants the named profile, or the token's default one. NotGranted if it is not the token's."""
        rule = self.holder(digest)
        if rule is None:
            raise NotGranted("token")
        name = rule.default if profile is None else profile
        if name not in rule.profiles:
            raise NotGranted("profile")
        return Grant(rule.name, name, dict(self.profiles)[name])

    @property
    def granted_modules(self) -> tuple[str, ...]:
        """Lists the modules that some token can reach: only these are loaded."""
        reachable = {name for rule in self.tokens for name in rule.profiles}
        return tuple(sorted({m for name, weights in self.profiles if name in reachable for m, _ in weights}))

    def require_modules(self, available: tuple[str, ...]) -> None:
        """ValueError for a profile with a module that the run lacks."""
        for name, weights in self.profiles:
            for module, _ in weights:
                if module not in available:
                    allowed = "one of the run's modules: " + (", ".join(available) or "it has none")
                    raise invalid(f"profiles.{name}.modules", module, allowed)

    def require_loaded(self, loaded: tuple[str, ...]) -> None:
        """ValueError for a granted module that a running server has not loaded."""
        if missing := [module for module in self.granted_modules if module not in loaded]:
            allowed = f"modules in the server's memory ({', '.join(loaded) or 'none'}): restart the server"
            raise invalid("policy", ", ".join(missing), allowed)

    def within(self, loaded: tuple[str, ...]) -> "Policy":
        """Returns the policy without what needs other modules: profiles, and tokens with such a default."""
        names = {name for name, weights in self.profiles if all(module in loaded for module, _ in weights)}
        kept = [replace(r, profiles=tuple(p for p in r.profiles if p in names)) for r in self.tokens]
        return replace(self, tokens=tuple(rule for rule in kept if rule.default in names))

    def text(self) -> str:
        """Writes the policy as a file's text, which `parse_policy` reads."""
        parts = []
        for name, weights in self.profiles:
            modules = ", ".join(f"{_quoted(module)} = {weight!r}" for module, weight in weights)
            parts.append(f"[profiles.{_quoted(name)}]\nmodules = {{ {modules} }}\n")
        return "".join(parts) + "".join(map(_entry, self.tokens))


def followed(text: str, before: Policy, loaded: tuple[str, ...]) -> tuple[Policy, str]:
    """Returns (the policy that a running server takes from a changed file, why not all of the file or "").

    A token that the file lacks is gone whatever else the file says: a revocation never waits for a grant.
    """
    try:
        policy = parse_policy(text)
    except Exception as error:  # whatever a parser raises: an edit must not end the server
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        kept = tuple(rule for rule in before.tokens if any(rule.sha256 in line for line in lines))
        return replace(before, tokens=kept), str(error)
    try:
        policy.require_loaded(loaded)
    except ValueError as error:
        return policy.within(loaded), str(error)
    return policy, ""


def is_recent(confirmed_at: float) -> bool:
    """Tells whether a policy that was confirmed then (by `time.monotonic`) still grants anything."""
    return time.monotonic() - confirmed_at <= LEASE_S


def token_digest(token: str) -> str:
    """Returns a token's SHA-256, 64 hexadecimal digits: all that the policy stores of it."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return "gram-" + secrets.token_urlsafe(32)


# ------------------------------------------------------------------------------------------------- the file


def load_policy(path: str) -> Policy:
    """Reads and validates a policy file; ValueError names the field, its value and the expected one."""
    return parse_policy(policy_text(path))


def policy_text(path: str) -> str:
    """Reads a policy file's text; ValueError if that fails, or if everyone may write the file."""
    try:
        with local_path("policy", path).open(encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise invalid("policy", path, f"a file that can be read ({error})") from None
    if mode & stat.S_IWOTH:
        raise invalid("policy", path, f"a file that not everyone may write (mode {stat.S_IMODE(mode):o}): chmod o-w")
    return text


def edit_policy(path: str, change: Callable[[str], str]) -> None:
    """Replaces a policy file by `change` of its text in one step; keeps mode, owner and a symbolic link to it.

    Other edits by this function wait, and one by an editor meanwhile is read again. ValueError if the text cannot be
    read or replaced or, once changed, is no policy.
    """
    try:
        _edit(Path(os.path.realpath(local_path("policy", path))), change)
    except OSError as error:
        raise invalid("policy", path, f"a file that can be read and replaced ({error})") from error


def _edit(real: Path, change: Callable[[str], str]) -> None:
    folder = os.open(real.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        while not _replaced(real, change):
            pass
    finally:
        os.close(folder)


def _replaced(path: Path, change: Callable[[str], str]) -> bool:
    before = policy_text(str(path))
    text, found = change(before), path.stat()
    parse_policy(text)
    with temporary_beside(path) as temporary:
        with open(temporary, "x", encoding="utf-8") as file:
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.write(text)
        sync(temporary)
        if policy_text(str(path)) != before:
            return False
        os.replace(temporary, path)
    return True


def parse_policy(text: str) -> Policy:
    """Validates a policy file's text, as `load_policy`."""
    try:
        plain = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise ValueError(f"policy is not TOML: {error}") from None
    _require_keys("policy", plain, ("profiles", "tokens"))
    profiles = plain.get("profiles")
    if not isinstance(profiles, Mapping) or not profiles:
        raise invalid("profiles", profiles, "at least one [profiles.NAME]")
    parsed = tuple((_name("profiles", name), _weights(name, fields)) for name, fields in profiles.items())
    entries = plain.get("tokens", [])
    if not isinstance(entries, list):
        raise invalid("tokens", entries, "a list: [[tokens]]")
    rules = tuple(_rule(index, entry, tuple(profiles)) for index, entry in enumerate(entries))
    for field in ("name", "sha256"):
        values = [getattr(rule, field) for rule in rules]
        if repeated := sorted({value for value in values if values.count(value) > 1}):
            raise invalid(f"tokens.{field}", repeated[0], "a value that no other token has")
    return Policy(parsed, rules)


def token_entry(
    name: str, token: str, profiles: tuple[str, ...], default: str, metrics: bool, max_requests: int | None = None
) -> str:
    """Formats the [[tokens]] entry to append to a policy file."""
    return _entry(TokenRule(name, token_digest(token), profiles, default, metrics, max_requests))


def _entry(rule: TokenRule) -> str:
    fields = {"name": rule.name, "sha256": rule.sha256, "profiles": list(rule.profiles), "default": rule.default}
    fields |= {"metrics": True} if rule.metrics else {}
    fields |= {} if rule.max_requests is None else {"max_requests": rule.max_requests}
    return "\n[[tokens]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)  # TOML's strings have no surrogate pairs


def _require_keys(field: str, plain: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(plain, Mapping):
        raise invalid(field, plain, "a table")
    if stray := sorted(set(plain) - set(allowed)):
        raise invalid(field, stray[0], "only " + ", ".join(allowed))


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise invalid(field, value, "a name of up to 64 letters, digits, _ + -, beginning with a letter or digit")
    return value


def _weights(name: str, fields: object) -> tuple[tuple[str, float], ...]:
    field = f"profiles.{name}.modules"
    _require_keys(f"profiles.{name}", fields, ("modules",))
    modules = fields.get("modules")
    if isinstance(modules, list) and all(isinstance(module, str) for module in modules):
        if len(set(modules)) != len(modules):
            raise invalid(field, modules, "every module once")
        modules = dict.fromkeys(modules, 1.0)
    if not isinstance(modules, Mapping):
        raise invalid(field, modules, "a list of modules, or a table of their weights")
    for module, weight in modules.items():
        require_name(field, module)
        require_real(f"{field}.{module}", weight, 0.0, 1.0)
    return tuple(sorted((module, float(weight)) for module, weight in modules.items() if weight))


def _rule(index: int, entry: object, known: tuple[str, ...]) -> TokenRule:
    field = f"tokens[{index}]"
    _require_keys(field, entry, TOKEN_FIELDS)
    name = _name(f"{field}.name", entry.get("name"))
    sha256, profiles, metrics = entry.get("sha256"), entry.get("profiles"), entry.get("metrics", False)
    if not isinstance(sha256, str) or not DIGEST.fullmatch(sha256):
        # never repeats the value: it may be the token itself
        raise ValueError(f"{field}.sha256 of {name!r}: expected 64 lower-case hexadecimal digits")
    if not isinstance(profiles, list) or not profiles or len(set(map(str, profiles))) != len(profiles):
        raise invalid(f"{field}.profiles", profiles, "a list of at least one profile, each once")
    for profile in profiles:
        if profile not in known:
            raise invalid(f"{field}.profiles", profile, "one of " + ", ".join(known))
    default = entry.get("default", profiles[0] if len(profiles) == 1 else None)
    if default not in profiles:
        raise invalid(f"{field}.default", default, "one of the token's profiles: " + ", ".join(profiles))
    if not isinstance(metrics, bool):
        raise invalid(f"{field}.metrics", metrics, "true or false")
    if (max_requests := entry.get("max_requests")) is not None:
        require_int(f"{field}.max_requests", max_requests, 1)
    return TokenRule(name, sha256, tuple(profiles), default, metrics, max_requests)
