"""A real Chromium without a window, that tells what a page drew, what it complained of and what it asked for."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Browser", "find_chromium"]

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the sandbox needs rights that root in a container has not
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # a container's /dev/shm is too small
    "--window-size=1400,1200",
)


def find_chromium() -> tuple[str, str]:
    """Return Chromium and its driver; without them, skip on a laptop and fail where CI is set: there they have to be.

    The skip says what is missing, and pytest lists it.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    missing = "chromium" if not browser else "chromedriver"
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{missing} is not installed, and CI has to test it", pytrace=False)
    pytest.skip(f"{missing} is not installed: apt-get install chromium chromium-driver")


class Browser:
    """One window.

    Args:
        directory: For the profile; must be empty.
    """

    def __init__(self, directory: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location, driver = find_chromium()
        for flag in (*_FLAGS, f"--user-data-dir={directory}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def open(self, page: Path) -> None:
        """Load a file; return when all its scripts have run."""
        self.driver.get("about:blank")  # ends what Chromium loads for its own first window
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(page.as_uri())

    def run(self, script: str) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Return what the console has: errors, warnings, violations of the policy. To be called once."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return what was asked for, the page itself and what stands in it apart; to be called once."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        assert self.driver.current_url in asked, "the log does not even have the page"
        return [url for url in asked if url != self.driver.current_url and not url.startswith(("data:", "blob:"))]

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
