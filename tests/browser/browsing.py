"""Chromium as a person uses it: opens pages, reads, clicks, types; and remembers what the page complained about."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support.clients import ConsoleProcess

SOON_S = 30.0
WIDE, PHONE = (1360, 900), (390, 844)


def open_chromium(profile: Path, pictures: Path | None) -> Browser:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for each in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(each)
    options.add_argument(
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    )  # nothing is fetched from elsewhere
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver")), pictures)


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome, pictures: Path | None) -> None:
        self.driver = driver
        self._pictures = pictures
        self._address = ""

    def come_in(self, console: ConsoleProcess) -> None:
        self.resize(WIDE)
        if self._address != console.address:
            self._address = console.address
            self.driver.get(console.link)
            self.until(lambda: "token" not in self.driver.current_url and self.find("nav"))
            self.complaints()

    def leave(self) -> None:
        """Forgets that it has come in."""
        self.driver.delete_all_cookies()
        self._address = ""
        self.complaints()

    def resize(self, size: tuple[int, int]) -> None:
        self.driver.set_window_size(*size)

    def open(self, path: str) -> None:
        self.driver.get(self._address + path)
        self.until(lambda: self.find("h1"))

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, css: str) -> WebElement | None:
        return next(iter(self.driver.find_elements(By.CSS_SELECTOR, css)), None)

    def text(self, css: str = "body") -> str:
        found = self.find(css)
        return "" if found is None else found.text

    def until(self, condition: Any, within_s: float = SOON_S) -> Any:
        """Waits until something is so."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if found := condition():
                    return found
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < deadline, f"not so in time; the page says:\n{self.text()}"
            time.sleep(0.05)

    def until_text(self, wanted: str, css: str = "body", within_s: float = SOON_S) -> None:
        self.until(lambda: wanted in self.text(css), within_s)

    def complaints(self) -> list[str]:
        """What went wrong in the page since the last time: scripts, and files that could not be had."""
        found = self.driver.get_log("browser")
        return [each["message"] for each in found if each["level"] == "SEVERE"]

    # -- doing -----------------------------------------------------------------------------------------------

    def click(self, label: str, within: str = "body") -> None:
        """Presses the button, switch or link with this text."""

        def press() -> bool:
            xpath = ".//*[self::button or self::a or self::label or @role='switch' or @role='button' or @role='option']"
            root = self.find(within)
            for each in [] if root is None else root.find_elements(By.XPATH, xpath):
                shown = [line for line in each.text.split("\n") if line]
                if (
                    each.is_displayed()
                    and each.is_enabled()
                    and (label in shown or each.get_attribute("aria-label") == label)
                ):
                    try:
                        each.click()
                    except WebDriverException:  # something still moves above it
                        return False
                    return True
            return False

        self.until(press)

    def type(self, label: str, text: str) -> None:
        """Writes into the field with this label, in place of what is there."""

        def write() -> bool:
            for each in self.driver.find_elements(By.CSS_SELECTOR, "input, textarea"):
                if each.get_attribute("aria-label") == label and each.is_displayed():
                    each.send_keys(Keys.CONTROL, "a")
                    each.send_keys(text)
                    return True
            return False

        self.until(write)

    def picture(self, name: str) -> None:
        if self._pictures is not None:
            self._pictures.mkdir(parents=True, exist_ok=True)
            time.sleep(1.0)  # charts and fonts
            self.driver.save_screenshot(str(self._pictures / f"{name}.png"))
