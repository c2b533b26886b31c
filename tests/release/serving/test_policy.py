"""A policy grants what it says and nothing else, and a wrong one is refused by name before anything is loaded."""

import pytest

from gram_platform.release.serving.policy import (
    Grant,
    NotGranted,
    PolicyFile,
    load_policy,
    new_token,
    parse_policy,
    token_digest,
    token_entry,
)
from tests.release.serving.planted import POLICY, planted

SHA = token_digest("x")
TOKEN = f'[[tokens]]\nname = "a"\nsha256 = "{SHA}"\nprofiles = ["open"]\n'


def test_a_token_has_its_profiles_and_no_other():
    plan = planted()
    policy, reader = plan.policy, token_digest(plan.tokens["reader"])
    assert policy.grant(reader) == Grant("reader", "medicine", (("virology", 1.0),))
    assert policy.grant(reader, "open") == Grant("reader", "open", ())
    for name in (
        "both",
        "nobodys",
        "virology",
        "",
        "OPEN",
        "open ",
        "\u043epen",
        "medicine\n",
        "open\x00",
    ):  # a Cyrillic o
        with pytest.raises(NotGranted, match="profile"):
            policy.grant(reader, name)
    for digest in (
        token_digest("token-of-nobody"),
        token_digest(""),
        reader.upper(),
        reader[:-1],
        plan.tokens["reader"],
    ):
        with pytest.raises(NotGranted, match="token"):
            policy.grant(digest, "open")


def test_modules_that_nobody_is_granted_are_not_among_those_to_load():
    assert planted().policy.granted_modules == ("lisp", "virology")


def test_weights_are_kept_and_zeros_dropped():
    text = "[profiles.half]\nmodules = { lisp = 0.5, virology = 0 }\n"
    policy = parse_policy(text + TOKEN.replace("open", "half"))
    assert policy.grant(SHA).weights == (("lisp", 0.5),)
    assert policy.granted_modules == ("lisp",)


def test_a_written_entry_is_read_again(tmp_path):
    token, path = new_token(), tmp_path / "policy.toml"
    path.write_text(POLICY + token_entry("zoe", token, ("open", "both"), "both", metrics=True))
    rule = load_policy(str(path)).holder(token_digest(token))
    assert (rule.name, rule.profiles, rule.default, rule.metrics) == ("zoe", ("open", "both"), "both", True)
    assert token not in path.read_text()
    assert len(token) > 40
    assert token != new_token()


def test_a_file_is_told_of_when_it_changes_also_when_it_is_empty(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    file = PolicyFile(str(path), POLICY)
    assert file.changed() is None
    path.write_text("")
    assert (file.changed(), file.changed()) == ("", None)
    with pytest.raises(ValueError, match="at least one"):
        parse_policy("")  # so what was there stays
    path.unlink()
    with pytest.raises(ValueError, match="can be read"):
        file.changed()
    assert file.changed() is None
    path.write_text("")
    assert (file.changed(), file.changed()) == ("", None)
    path.write_text(POLICY)
    assert (file.changed(), file.changed()) == (POLICY, None)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("policy is not TOML", "profiles ="),
        (r"profiles=None.*at least one", TOKEN),
        (r"policy='extra'.*only profiles, tokens", POLICY + "[extra]\n"),
        (r"profiles='ví'", '[profiles."ví"]\nmodules = []\n'),
        (r"profiles\.open='module'.*only modules", "[profiles.open]\nmodule = []\n"),
        (r"profiles\.open\.modules=None", "[profiles.open]\n"),
        (r"profiles\.open\.modules='lisp'", '[profiles.open]\nmodules = "lisp"\n'),
        (r"every module once", '[profiles.open]\nmodules = ["lisp", "lisp"]\n'),
        (r"modules\.lisp=1\.5", "[profiles.open]\nmodules = { lisp = 1.5 }\n"),
        (r"modules\.lisp=True", "[profiles.open]\nmodules = { lisp = true }\n"),
        (r"modules\.lisp=nan", "[profiles.open]\nmodules = { lisp = nan }\n"),
        (r"tokens=.*a list", POLICY + "[tokens]\n"),
        (r"tokens\[0\]='admin'", POLICY + TOKEN + "admin = true\n"),
        (r"tokens\[0\]\.name=''", POLICY + TOKEN.replace('"a"', '""')),
        (r"tokens\[0\]\.sha256 of 'a'", POLICY + TOKEN.replace(SHA, SHA.upper())),
        (r"tokens\[0\]\.profiles='gone'.*one of open", POLICY + TOKEN.replace("open", "gone")),
        (r"tokens\[0\]\.profiles=\[\]", POLICY + TOKEN.replace('"open"', "")),
        (r"tokens\[0\]\.profiles=.*each once", POLICY + TOKEN.replace('"open"', '"open", "open"')),
        (r"tokens\[0\]\.default=None", POLICY + TOKEN.replace('"open"', '"open", "lisp"')),
        (r"tokens\[0\]\.default='both'", POLICY + TOKEN + 'default = "both"\n'),
        (r"tokens\[0\]\.metrics=1", POLICY + TOKEN + "metrics = 1\n"),
        (r"tokens\.name='a'", POLICY + TOKEN + TOKEN),
        (r"tokens\.sha256=", POLICY + TOKEN + TOKEN.replace('"a"', '"b"')),
    ],
)
def test_a_wrong_policy_is_refused(message, text):
    with pytest.raises(ValueError, match=message):
        parse_policy(text)


def test_a_token_in_place_of_its_hash_is_not_repeated():
    with pytest.raises(ValueError) as error:
        parse_policy(POLICY + TOKEN.replace(SHA, "my-secret-token"))
    assert "my-secret-token" not in str(error.value)


def test_modules_that_the_run_lacks_are_refused(tmp_path):
    planted().policy.require_modules(("lisp", "secret", "virology"))
    with pytest.raises(ValueError, match=r"profiles\.nobodys\.modules='secret'.*lisp, virology"):
        planted().policy.require_modules(("lisp", "virology"))
    with pytest.raises(ValueError, match=r"policy=.*gone\.toml"):
        load_policy(str(tmp_path / "gone.toml"))
