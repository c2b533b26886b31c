"""The samples page in a browser: two tokens, two profiles, one prompt, answers that stream in."""

import pytest

from tests.pages.site.browser import Browser, running_browser
from tests.release.serving.http import load_of, served, wait_until

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site():
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


def give(browser: Browser, side: str, token: str) -> None:
    field = f"document.getElementById('token-{side}')"
    browser.evaluate(f"{field}.value = '{token}'; {field}.dispatchEvent(new Event('change'))")


def said(browser: Browser, side: str) -> str:
    return browser.evaluate(f"document.getElementById('answer-{side}').lastChild.data")


def note(browser: Browser, side: str) -> str:
    return browser.evaluate(f"document.getElementById('note-{side}').textContent")


def test_two_profiles_side_by_side(browser, site):
    address = f"http://127.0.0.1:{site.port}/"
    browser.visit(address)
    give(browser, "a", site.plan.tokens["reader"])
    give(browser, "b", site.plan.tokens["both"])
    for side in "ab":
        assert browser.wait_for(f"!document.getElementById('profile-{side}').disabled")
    options = "[...document.getElementById('profile-a').options].map((o) => o.value + o.selected)"
    assert browser.evaluate(options) == ["openfalse", "lispfalse", "medicinetrue"]
    browser.evaluate("document.getElementById('profile-a').value = 'lisp'")
    browser.evaluate(
        "document.getElementById('max_tokens').value = 20; document.getElementById('go').click()"
    )
    for side in "ab":
        assert browser.wait_for(
            f"document.getElementById('note-{side}').textContent.includes('asked for')"
        )
    expected = [
        site.complete(p, max_tokens=20).json["choices"][0]["text"] for p in ("lisp", "both")
    ]
    assert [said(browser, "a"), said(browser, "b")] == expected
    assert len(set(expected)) == 2
    allowed = {f"request to {address}{path}" for path in ("", "v1/models", "v1/completions")}
    assert set(browser.said) <= allowed, browser.said


def test_a_late_answer_for_a_replaced_token_changes_nothing(browser, site):
    """The right side first asks with the left side's token."""
    browser.visit(f"http://127.0.0.1:{site.port}/")
    browser.evaluate(
        "window.asked = window.late = 0; window.plain = window.fetch;"
        " window.fetch = async (...of) => {"
        " const is_late = window.asked++ < 2, answer = await window.plain(...of);"
        " if (is_late) { await new Promise((go) => setTimeout(go, 500));"
        " setTimeout(() => window.late++, 100); } return answer; }; 0"
    )
    give(browser, "a", site.plan.tokens["reader"])
    give(browser, "b", site.plan.tokens["both"])
    assert browser.wait_for("window.late === 2")
    assert browser.evaluate("[window.asked, document.getElementById('profile-b').disabled]") == [
        3,
        False,
    ]
    values = "[...document.getElementById('profile-b').options].map((option) => option.value)"
    assert browser.evaluate(values) == ["both"]


def test_refusals_are_shown_and_stop_stops(browser, site):
    browser.visit(f"http://127.0.0.1:{site.port}/")
    give(browser, "a", "token-of-nobody")
    assert browser.wait_for("document.getElementById('note-a').textContent.includes('token')")
    give(browser, "b", site.plan.tokens["both"])
    assert browser.wait_for("!document.getElementById('profile-b').disabled")
    with site.slowed(0.2):
        browser.evaluate("document.getElementById('go').click()")
        assert browser.wait_for("document.getElementById('answer-b').lastChild.data.length > 1")
        assert "token" in note(browser, "a")
        browser.evaluate("document.getElementById('halt').click()")
        assert browser.wait_for("document.getElementById('note-b').textContent === 'stopped'")
    wait_until(lambda: load_of(site.server.engine) == (0, 0))
