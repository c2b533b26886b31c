"""The samples page in a browser: two tokens, two profiles, one prompt, answers that stream in."""

import http.client
import time

import pytest

from tests.pages.site.browser import Browser, running_browser
from tests.release.serving.http import served

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
    browser.evaluate("document.getElementById('max_tokens').value = 20; document.getElementById('go').click()")
    for side in "ab":
        assert browser.wait_for(f"document.getElementById('note-{side}').textContent.includes('asked for')")
    expected = [site.complete(p, max_tokens=20).json["choices"][0]["text"] for p in ("lisp", "both")]
    assert [said(browser, "a"), said(browser, "b")] == expected
    assert len(set(expected)) == 2
    allowed = {f"request to {address}{path}" for path in ("", "v1/models", "v1/completions")}
    assert set(browser.said) <= allowed, browser.said


def test_refusals_are_shown_and_stop_stops(browser, site):
    browser.visit(f"http://127.0.0.1:{site.port}/")
    give(browser, "a", "token-of-nobody")
    assert browser.wait_for("document.getElementById('note-a').textContent.includes('token')")
    give(browser, "b", site.plan.tokens["both"])
    assert browser.wait_for("!document.getElementById('profile-b').disabled")
    step = site.server.engine._batch.step
    site.server.engine._batch.step = lambda: (time.sleep(0.2), step())[1]
    browser.evaluate("document.getElementById('go').click()")
    assert browser.wait_for("document.getElementById('answer-b').lastChild.data.length > 1")
    assert "token" in note(browser, "a")
    browser.evaluate("document.getElementById('halt').click()")
    assert browser.wait_for("document.getElementById('note-b').textContent === 'stopped'")
    site.server.engine._batch.step = step
    deadline = time.monotonic() + 60
    while site.server.engine.load() != (0, 0) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert site.server.engine.load() == (0, 0)  # long before its forty tokens


def test_nobody_can_frame_it_or_call_it_from_elsewhere(site):
    connection = http.client.HTTPConnection("127.0.0.1", site.port)
    connection.request("OPTIONS", "/v1/completions", headers={"Origin": "http://elsewhere.example"})
    answer = connection.getresponse()
    assert answer.status == 405
    assert answer.getheader("access-control-allow-origin") is None
    connection.close()
    assert "frame-ancestors 'none'" in site.ask("GET", "/").headers["content-security-policy"]
