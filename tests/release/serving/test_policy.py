"""A policy grants what it says and nothing else, and a wrong one is refused by name before anything
is loaded."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gram_platform.release.serving.policy import (
    LEASE_S,
    Grant,
    NotGranted,
    is_recent,
    new_token,
    parse_policy,
    token_digest,
    update_policy,
)
from gram_platform.release.serving.policy_file import (
    MAX_POLICY_BYTES,
    edit_policy,
    load_policy,
    policy_text,
)
from tests.refused import refused
from tests.release.planted import entry_of
from tests.release.serving.planted import POLICY, planted, text_of

SHA = token_digest("x")
TOKEN = f'[[tokens]]\nname = "a"\nsha256 = "{SHA}"\nprofiles = ["open"]\n'


def test_a_token_has_its_profiles_and_no_other():
    plan = planted()
    policy, reader = plan.policy, token_digest(plan.tokens["reader"])
    assert policy.grant(reader) == Grant("reader", "medicine", (("virology", 1.0),))
    assert policy.grant(reader, "open") == Grant("reader", "open", ())
    for name in ("both", "nobodys", "virology", "", "OPEN", "open ", "\u043epen"):  # a Cyrillic o
        with pytest.raises(NotGranted):
            policy.grant(reader, name)
    for digest in (
        token_digest("token-of-nobody"),
        reader.upper(),
        reader[:-1],
        plan.tokens["reader"],
    ):
        with pytest.raises(NotGranted):
            policy.grant(digest, "open")


def test_weights_are_kept_and_zeros_dropped():
    text = "[profiles.half]\nmodules = { lisp = 0.5, virology = 0 }\n"
    policy = parse_policy(text + TOKEN.replace("open", "half"))
    assert policy.grant(SHA).weights == (("lisp", 0.5),)
    assert policy.modules_of_tokens == ("lisp",)


def names(policy) -> set[str]:
    return {rule.name for rule in policy.tokens}


def test_a_revocation_never_waits_for_the_rest_of_the_file():
    before, loaded = planted().policy, ("lisp", "virology")
    others = names(before) - {"both"}
    kept = tuple(rule for rule in before.tokens if rule.name != "both")
    text = text_of(replace(before, tokens=kept))
    too_long = "[profiles.p]\nmodules = { lisp = 1" + "0" * 400 + " }"
    for extra in (too_long, "[extra]", '[[tokens]]\nname = "both"\n'):
        policy, errors = update_policy(text + extra, before, loaded)
        assert names(policy) == others
        assert len(errors) == 1
    assert update_policy(text, before, loaded) == (parse_policy(text), ())
    granted = text.replace('profiles = ["open"]', 'profiles = ["open", "nobodys"]')
    policy, errors = update_policy(granted, before, loaded)
    assert names(policy) == others
    assert "'secret'" in errors[0]
    assert policy.modules_of_tokens == loaded
    moved = granted.replace('default = "open"', 'default = "nobodys"')
    assert names(update_policy(moved, before, loaded)[0]) == others - {"open"}
    assert names(update_policy("", before, loaded)[0]) == set()


PLAN = planted()
BOTH = '[profiles.both]\nmodules = ["lisp", "virology"]\n'
OWN = f"""[[tokens]]
name = "both"
sha256 = "{token_digest(PLAN.tokens["both"])}"
profiles = ["both"]
"""
REST, NOTHING = "open lisp medicine", ""
# What an operator makes of the text of profile and token `both`; what is left to another token.
EDITS = {
    "no profiles": ({OWN: OWN.replace('["both"]', "[]")}, REST),
    "an unknown field": ({OWN: OWN + "until = 2027-01-01\n"}, REST),
    "two entries of a token": ({OWN: OWN + OWN.replace('"both"\n', '"again"\n')}, REST),
    "two entries, one wrong": ({OWN: OWN + OWN.replace('["both"]', "3")}, REST),
    "a profile of another name": ({OWN: OWN.replace('["both"]', '["bo\u200bth"]')}, REST),
    "the profile gone": ({BOTH: ""}, REST),
    "an unknown module": ({BOTH: BOTH.replace("virology", "vir\u200bology")}, REST),
    "a weight out of range": ({BOTH: "[profiles.both]\nmodules = { lisp = 7 }\n"}, REST),
    "a profile of others gone": (
        {'[profiles.lisp]\nmodules = ["lisp"]\n': "", BOTH: ""},
        "open medicine",
    ),
    "the default of others gone": ({"[profiles.medicine]": "[profiles.other]", BOTH: ""}, NOTHING),
    "a comment of another language": ({OWN: "// " + OWN.replace("\n", "\n// ") + "\n"}, NOTHING),
    "the same table twice": ({BOTH: BOTH + "[profiles.both]\nmodules = []\n"}, NOTHING),
    "brackets": ({OWN: OWN + "x = " + "[" * 100_000}, NOTHING),
    "no text": ({PLAN.policy_text: ""}, NOTHING),
    "tokens that are no list": (
        {PLAN.policy_text: PLAN.policy_text.split("[[tokens]]")[0] + "[tokens]\n"},
        NOTHING,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_cannot_be_read_grants_nothing_and_the_rest_is_followed(name):
    edits, left = EDITS[name]
    text = PLAN.policy_text
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    policy, errors = update_policy(text, PLAN.policy, ("lisp", "virology"))
    assert errors
    assert "both" not in {profile for rule in policy.tokens for profile in rule.profiles}
    assert {
        profile for rule in policy.tokens for profile in rule.profiles if rule.name == "reader"
    } == set(left.split())


def test_a_confirmation_lasts_as_long_as_security_says():
    assert (
        f"confirmed for {LEASE_S:.0f} s" in (Path(__file__).parents[3] / "SECURITY.md").read_text()
    )
    now = time.monotonic()
    assert is_recent(now)
    assert is_recent(now - LEASE_S + 1)
    assert not is_recent(now - LEASE_S - 0.1)


def test_an_edit_to_what_is_no_policy_changes_nothing(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    with pytest.raises(ValueError):
        edit_policy(str(path), lambda text: text + "[[tokens]")
    assert path.read_text() == POLICY
    assert [each.name for each in tmp_path.iterdir()] == ["policy.toml"]


def test_a_file_that_everyone_may_write_is_refused(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o646)
    with refused("policy", str(path)):
        policy_text(str(path))
    with refused("policy", str(path)):
        edit_policy(str(path), lambda text: text + "\n")


def test_a_file_that_everyone_could_replace_is_refused(tmp_path, monkeypatch):
    """In a folder of everybody, on the way to one, or behind a link in one; the sticky bit keeps an
    owner's file."""
    public, path = tmp_path / "public", tmp_path / "public" / "own" / "policy.toml"
    path.parent.mkdir(parents=True)
    path.write_text(POLICY)
    (tmp_path / "link.toml").symlink_to(public / "second.toml")
    (public / "second.toml").symlink_to(tmp_path / "policy.toml")
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "folder").symlink_to(public / "own")
    places = (
        path,
        tmp_path / "link.toml",
        tmp_path / "folder" / "policy.toml",
        public / ".." / "link.toml",
    )
    for place in places:
        assert policy_text(str(place)) == POLICY
    public.chmod(0o777)
    for place in places:
        with refused("policy", str(place)):
            policy_text(str(place))
    with refused("policy", str(path)):
        edit_policy(str(path), lambda text: text + "\n")
    public.chmod(0o1777)
    assert policy_text(str(path)) == POLICY
    if os.geteuid() == 0:
        os.chown(path.parent, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with refused("policy", str(path)):  # the folder `own` is of another user
        policy_text(str(path))
    read_only = os.statvfs_result([*os.statvfs(public)[:8], os.ST_RDONLY, 255])
    monkeypatch.setattr(os, "statvfs", lambda folder: read_only)
    assert policy_text(str(path)) == POLICY


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to(path),
        lambda path: path.write_text(POLICY + "#" * MAX_POLICY_BYTES),
        lambda path: path.write_bytes(POLICY.encode() + b"# \xe9\n"),
    ],
    ids=["pipe", "circle", "large", "latin"],
)
def test_a_policy_that_is_no_regular_text_is_refused_at_once(make, tmp_path):
    path = tmp_path / "policy.toml"
    make(path)
    for read in (policy_text, lambda place: edit_policy(place, lambda text: text)):
        with refused("policy"):
            read(str(path))


def test_a_text_of_another_system_is_read(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (POLICY + TOKEN).replace("\n", "\r\n").encode())
    assert load_policy(str(path)) == parse_policy(POLICY + TOKEN)


def test_an_edit_keeps_link_mode_and_owner_and_loses_no_other(tmp_path):
    real, link = tmp_path / "etc" / "policy.toml", tmp_path / "policy.toml"
    real.parent.mkdir()
    real.write_text(POLICY)
    real.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(real, 12345, 54321)
    before = real.stat()
    link.symlink_to(real)

    def add(number: int) -> None:
        entry = entry_of(f"t{number}", new_token(), ("open",))
        edit_policy(str(link), lambda text: text + entry)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert link.is_symlink()
    after = real.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert names(load_policy(str(link))) == {f"t{number}" for number in range(24)}
    assert [path.name for path in real.parent.iterdir()] == ["policy.toml"]


def test_a_revocation_while_a_token_is_added_stays(tmp_path):
    """An administrator's editor takes no lock: what it wrote meanwhile is read again."""
    path, texts = tmp_path / "policy.toml", []
    path.write_text(POLICY + TOKEN)
    entry = entry_of("zoe", new_token(), ("open",))

    def change(text: str) -> str:
        if not texts:
            path.write_text(POLICY)  # TOKEN is revoked
        texts.append(text)
        return text + entry

    edit_policy(str(path), change)
    assert len(texts) == 2
    assert names(load_policy(str(path))) == {"zoe"}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("profiles", TOKEN),
        ("profiles", '[profiles."ví"]\nmodules = []\n'),
        ("profiles.open", "[profiles.open]\nmodule = []\n"),
        ("profiles.open.modules", '[profiles.open]\nmodules = ["a/b"]\n'),
        ("profiles.open.modules", '[profiles.open]\nmodules = ["lisp", "lisp"]\n'),
        ("profiles.open.modules.lisp", "[profiles.open]\nmodules = { lisp = 1.5 }\n"),
        ("profiles.open.modules.lisp", "[profiles.open]\nmodules = { lisp = nan }\n"),
        ("policy", POLICY + "[extra]\n"),
        ("tokens", POLICY + "[tokens]\n"),
        ("tokens[0]", POLICY + TOKEN + "admin = true\n"),
        ("tokens[0].name", POLICY + TOKEN.replace('"a"', '""')),
        ("tokens[0].sha256", POLICY + TOKEN.replace(SHA, SHA.upper())),
        ("tokens[0].profiles", POLICY + TOKEN.replace("open", "gone")),
        ("tokens[0].profiles", POLICY + TOKEN.replace('"open"', '"open", "open"')),
        ("tokens[0].default", POLICY + TOKEN.replace('"open"', '"open", "lisp"')),
        ("tokens[0].metrics", POLICY + TOKEN + "metrics = 1\n"),
        ("tokens[0].max_requests", POLICY + TOKEN + "max_requests = 0\n"),
        ("tokens.name", POLICY + TOKEN + TOKEN),
        ("tokens.sha256", POLICY + TOKEN + TOKEN.replace('"a"', '"b"')),
    ],
)
def test_a_wrong_policy_is_refused(field, text):
    """The error begins with the field. It is a text, since `gram serve` prints those of all parts
    of a file."""
    with pytest.raises(ValueError) as error:
        parse_policy(text)
    assert re.split("[= ]", str(error.value))[0] == field


def test_a_token_in_place_of_its_hash_is_not_repeated():
    with pytest.raises(ValueError) as error:
        parse_policy(POLICY + TOKEN.replace(SHA, "my-secret-token"))
    assert "my-secret-token" not in str(error.value)


def test_modules_that_the_run_lacks_are_refused(tmp_path):
    planted().policy.require_modules(("lisp", "secret", "virology"))
    with refused("profiles.nobodys.modules", "secret"):
        planted().policy.require_modules(("lisp", "virology"))
    with refused("policy", str(tmp_path / "gone.toml")):
        load_policy(str(tmp_path / "gone.toml"))
