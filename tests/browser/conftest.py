"""A headless Chromium for pages opened from disk. Skipped, with the reason, where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """One window. ``driver`` is selenium's own, for keys, clicks and window sizes."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open a page from disk, until its charts are drawn; what the console said of earlier pages is forgotten."""
        self.errors()
        self.driver.get(path.resolve().as_uri())
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda _: self.run("return 'drawn' in document.documentElement.dataset"))

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; it finds its arguments in ``arguments``."""
        return self.driver.execute_script(script, *arguments)

    def traces(self, selector: str = ".js-plotly-plot") -> list[dict[str, Any]]:
        """Name, x and y of the traces that plotly has drawn in one figure, as plain numbers."""
        found: list[dict[str, Any]] = self.run(_TRACES, selector)
        return found

    def errors(self) -> list[str]:
        """What the console said that is an error, since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


#: `_fullData` is what was drawn. Numbers may have come as typed arrays, in base64.
_TRACES = """
const plot = document.querySelector(arguments[0]);
return plot._fullData.map(t => ({name: t.name, x: Array.from(t.x || []), y: Array.from(t.y || [])}));
"""
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1400")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A window of Debian's chromium, one for the session of a worker."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the dev extra has it)")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver on the PATH: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    window.set_script_timeout(60)
    yield Browser(window)
    window.quit()
