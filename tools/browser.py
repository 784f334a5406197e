"""A headless browser, which draws a page for a picture or a test.

Rule of this file: which browser, and how it is started; the caller looks at the page.
"""

from __future__ import annotations

import shutil
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
INSTALL = "on Debian: apt-get install chromium"


def find_browser() -> str | None:
    """Return the first of BROWSERS that is installed."""
    return next((program for name in BROWSERS if (program := shutil.which(name)) is not None), None)


def headless(browser: str, page: Path, profile: Path, window: str, dark: bool, what: str) -> list[str]:
    """Return the command that draws `page` and then does `what`, such as --dump-dom. `profile` is a folder for the
    browser's own use, `window` its size as `width,height`.
    """
    return [
        *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=20000", f"--window-size={window}"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(what, page.resolve().as_uri()),
    ]
