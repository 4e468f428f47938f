"""The documents as a site, opened from a folder: its search works without a server and without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser.browsing import WIDE, Browser
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.shadowroot import ShadowRoot
from support.site import build_site

pytestmark = pytest.mark.browser


def test_search_finds_pages_from_a_folder(chromium: Browser, tmp_path: Path) -> None:
    site = build_site(tmp_path)
    driver = chromium.driver
    chromium.leave()
    chromium.resize(WIDE)
    driver.get((site / "reference" / "client.html").as_uri())
    chromium.until(lambda: chromium.find(".md-search__button")).click()

    def dialog() -> ShadowRoot | None:
        for each in driver.find_elements(By.CSS_SELECTOR, "body > div"):
            if driver.execute_script("return arguments[0].shadowRoot !== null", each):
                return each.shadow_root
        return None

    search = chromium.until(dialog)
    chromium.until(lambda: search.find_elements(By.CSS_SELECTOR, "input"))[0].send_keys("send_batch")
    found = chromium.until(lambda: [each.get_attribute("href") for each in search.find_elements(By.CSS_SELECTOR, "a")])
    assert any(address.startswith((site / "reference" / "api" / "client.html").as_uri()) for address in found)
    assert chromium.complaints() == []
