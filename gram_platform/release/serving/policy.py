"""Parses and writes policies in TOML, which map tokens to profiles and profiles to modules.

    [profiles.open]
    modules = []                                # only core

    [profiles.medicine]
    modules = ["virology"]

    [profiles.half]
    modules = { virology = 0.5, lisp = 1.0 }    # weights, as in a view

    [[tokens]]
    name = "alice"                              # for people and logs
    sha256 = "..."                              # of the token, which is never stored
    profiles = ["open", "medicine"]
    default = "medicine"                        # required with several profiles
    metrics = true                              # may read /metrics; default: false
    max_requests = 8                            # open at once; default: the server's

A token has 256 random bits and cannot be guessed, so its SHA-256 needs no salt.
"""

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain

from gram_platform.config.identity import (
    invalid,
    one_of,
    parse_with,
    require_choice,
    require_int,
    require_name,
    require_real,
)

# Callers type names, and ASCII has no look-alike letters.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")
# Seconds after its last confirmation at which a policy expires.
LEASE_S = 10.0
TOKEN_FIELDS = ("name", "sha256", "profiles", "default", "metrics", "max_requests")


class NotGranted(Exception):
    """Raised if the token is unknown or does not have the profile."""


@dataclass(frozen=True)
class Grant:
    """The profile and weights that a request may use. Created only by `Policy.grant`."""

    holder: str
    profile: str
    # Sorted pairs of a module and its weight, without zeros.
    weights: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class TokenRule:
    """A token's entry in the policy."""

    name: str
    sha256: str
    profiles: tuple[str, ...]
    default: str
    metrics: bool
    # None for the server's default.
    max_requests: int | None


@dataclass(frozen=True)
class Policy:
    profiles: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    tokens: tuple[TokenRule, ...]

    def holder(self, digest: str) -> TokenRule | None:
        """Returns the rule with this digest, or None. Takes equally long for all digests."""
        match = None
        for rule in self.tokens:
            if hmac.compare_digest(rule.sha256.encode(), digest.encode()):
                match = rule
        return match

    def grant(self, digest: str, profile: str | None = None) -> Grant:
        """Grants a profile (default: the token's default) to a token, or raises NotGranted."""
        rule = self.holder(digest)
        if rule is None:
            raise NotGranted("token")
        name = rule.default if profile is None else profile
        if name not in rule.profiles:
            raise NotGranted("profile")
        return Grant(rule.name, name, dict(self.profiles)[name])

    @property
    def _profiles_of_tokens(self) -> dict[str, list[str]]:
        names = {name for rule in self.tokens for name in rule.profiles}
        return {name: list(dict(weights)) for name, weights in self.profiles if name in names}

    @property
    def modules_of_tokens(self) -> tuple[str, ...]:
        """The modules that at least one token may use. A server loads only these modules."""
        return tuple(sorted(set(chain.from_iterable(self._profiles_of_tokens.values()))))

    def require_modules(self, available: tuple[str, ...]) -> None:
        """Raises ValueError if a profile has a module that is not in `available`."""
        for name, weights in self.profiles:
            for module, _ in weights:
                if module not in available:
                    names = one_of(module, available, "the run's modules: ")
                    raise invalid(
                        f"profiles.{name}.modules",
                        module,
                        names if available else f"{names}it has none",
                    )

    def not_loaded(self, loaded: Collection[str]) -> dict[str, ValueError]:
        """Returns {profile: error} for the tokens' profiles that need a module not in `loaded`."""
        memory, errors = ", ".join(loaded) or "none", {}
        for name, modules in self._profiles_of_tokens.items():
            if missing := [module for module in modules if module not in loaded]:
                allowed = f"modules in the server's memory ({memory}): restart the server"
                errors[name] = invalid(f"profiles.{name}.modules", ", ".join(missing), allowed)
        return errors

    def only(self, names: Collection[str]) -> "Policy":
        """Returns a policy that grants only the profiles in `names`.

        Drops each token whose default profile is not in `names`.
        """
        rules = [
            replace(r, profiles=tuple(p for p in r.profiles if p in names)) for r in self.tokens
        ]
        return replace(self, tokens=tuple(rule for rule in rules if rule.default in names))


def update_policy(
    text: str, before: Policy, loaded: Collection[str]
) -> tuple[Policy, tuple[str, ...]]:
    """Parses a running server's new policy. Returns (policy, errors).

    Skips profiles and tokens with an error, and profiles with a module that is not in `loaded`. If
    no profile is valid, returns the old policy `before`, without tokens.
    """
    try:
        policy, errors = read_policy(text)
    except ValueError as error:
        return replace(before, tokens=()), (str(error),)
    missing = policy.not_loaded(loaded)
    errors += map(str, missing.values())
    return policy.only(dict(policy.profiles).keys() - missing), tuple(errors)


def is_recent(confirmed_at: float) -> bool:
    """Returns True if a policy confirmed at this time (`time.monotonic`) has not expired."""
    return time.monotonic() - confirmed_at <= LEASE_S


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> str:
    return "gram-" + secrets.token_urlsafe(32)


def parse_policy(text: str) -> Policy:
    """Parses a policy's text. Raises ValueError if any part is invalid."""
    policy, errors = read_policy(text)
    if errors:
        raise ValueError(errors[0])
    return policy


def read_policy(text: str) -> tuple[Policy, list[str]]:
    """Returns (the valid parts of a policy, errors in the other parts).

    Raises ValueError if no profile is valid.
    """
    try:
        plain = parse_with(tomllib.loads, text)
    except ValueError as error:
        # A number with thousands of digits is a ValueError too.
        raise ValueError(f"policy is not TOML: {error}") from None
    errors, profiles, rules = [], {}, []
    with _collect_errors(errors):
        _require_keys("policy", plain, ("profiles", "tokens"))
    tables, entries = plain.get("profiles"), plain.get("tokens", [])
    if not isinstance(tables, Mapping) or not tables:
        raise invalid("profiles", tables, "at least one [profiles.NAME]")
    for name, fields in tables.items():
        with _collect_errors(errors):
            profiles[_name("profiles", name)] = _weights(name, fields)
    if not profiles:
        raise ValueError(errors[-1])
    if not isinstance(entries, list):
        errors.append(str(invalid("tokens", type(entries).__name__, "a list: [[tokens]]")))
        entries = []
    for index, entry in enumerate(entries):
        with _collect_errors(errors):
            rules.append(_rule(index, entry))
            for profile in rules[-1].profiles:
                require_choice(f"tokens[{index}].profiles", profile, tables)
    for field in ("name", "sha256"):
        # Entries with errors count too, because any of the entries may be right.
        counts = Counter(str(entry.get(field)) for entry in entries if isinstance(entry, Mapping))
        values = {getattr(rule, field) for rule in rules}
        for value in sorted(value for value in values if counts[value] > 1):
            errors.append(str(invalid(f"tokens.{field}", value, "a value that no other token has")))
            rules = [rule for rule in rules if getattr(rule, field) != value]
    return Policy(tuple(profiles.items()), tuple(rules)).only(profiles), errors


@contextlib.contextmanager
def _collect_errors(errors: list[str]) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        errors.append(str(error))


def token_entry(rule: TokenRule) -> str:
    """Formats a [[tokens]] entry to append to a policy file."""
    fields = asdict(rule) | {"metrics": rule.metrics or None}
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in fields.items() if value is not None)
    return "\n[[tokens]]\n" + "".join(lines)


def _require_keys(field: str, plain: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(plain, Mapping):
        raise invalid(field, plain, "a table")
    if unknown := sorted(set(plain) - set(allowed)):
        raise invalid(field, unknown[0], "only " + ", ".join(allowed))


def _name(field: str, value: object) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise invalid(
            field,
            value,
            "a name of up to 64 letters, digits, _ + -, beginning with a letter or digit",
        )
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


def _rule(index: int, entry: object) -> TokenRule:
    field = f"tokens[{index}]"
    if not isinstance(entry, Mapping):
        # The error omits the value, which could be the token itself.
        raise invalid(field, type(entry).__name__, "a table")
    _require_keys(field, entry, TOKEN_FIELDS)
    name = _name(f"{field}.name", entry.get("name"))
    sha256, profiles = entry.get("sha256"), entry.get("profiles")
    metrics, max_requests = entry.get("metrics", False), entry.get("max_requests")
    if not isinstance(sha256, str) or not DIGEST.fullmatch(sha256):
        raise ValueError(f"{field}.sha256 of {name!r}: expected 64 lower-case hexadecimal digits")
    is_list = isinstance(profiles, list) and profiles
    if not is_list or len(set(map(str, profiles))) != len(profiles):
        raise invalid(f"{field}.profiles", profiles, "a list of at least one profile, each once")
    for profile in profiles:
        _name(f"{field}.profiles", profile)
    default = entry.get("default", profiles[0] if len(profiles) == 1 else None)
    if default not in profiles:
        raise invalid(
            f"{field}.default", default, one_of(default, profiles, "the token's profiles: ")
        )
    if not isinstance(metrics, bool):
        raise invalid(f"{field}.metrics", metrics, "true or false")
    if max_requests is not None:
        require_int(f"{field}.max_requests", max_requests, 1)
    return TokenRule(name, sha256, tuple(profiles), default, metrics, max_requests)
