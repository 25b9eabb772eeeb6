"""The page at /, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.browser import PROGRAM, Browser
from tests.serving.conftest import KEY
from tests.serving.service import Serving

pytestmark = [
    pytest.mark.gang,
    pytest.mark.torch,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here"),
]

WATCH = """
window.seen = new Set();
new MutationObserver(() => seen.add([...document.querySelectorAll('.assistant')].at(-1).textContent.length))
  .observe(document.getElementById('turns'), {childList: true, subtree: true});
0
"""
"""Collects how long the answer was each time the page changed."""


@pytest.fixture
def browser(service: Serving, tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "profile", service.url)
    yield browser
    browser.close()


def pieces(browser: Browser) -> int:
    """How many lengths of an answer are seen while it comes."""
    browser.js("seen.clear()")
    browser.js("document.getElementById('text').value = 'The for statement'")
    browser.js("document.getElementById('ask').requestSubmit()")
    browser.until("!document.getElementById('stop').hidden || seen.size > 1")
    browser.until("document.getElementById('stop').hidden")
    return int(browser.js("seen.size"))


def test_the_page_tells_the_state_of_the_gang_asks_for_the_key_and_shows_the_answer_as_it_comes(
    browser: Browser,
) -> None:
    browser.until("document.getElementById('state')?.className === 'ready'")
    assert browser.js("document.getElementById('model').textContent") == "kept"

    browser.js("ask('The for statement')")
    assert "no valid key" in browser.until("document.querySelector('.error')?.textContent")
    assert browser.js("turns.length") == 0  # else a template that wants turns to alternate refuses every further one

    browser.js(f"document.getElementById('key').value = '{KEY}'; document.getElementById('tokens').value = 60")
    browser.js(WATCH)
    assert any(pieces(browser) > 3 for _ in range(5))  # a busy machine may hand over all at once
    assert browser.js("document.querySelectorAll('.error').length") == 1
