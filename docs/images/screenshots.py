"""Takes the pictures of the README: a page of attention and the report of a run, in Chromium.

    python docs/images/screenshots.py RUN

RUN is the workdir of a run; the page of attention is that of `bertjax:tiny`. Writes
`attention.png` and `report.png` beside this script, light, 1,280 pixels wide. Needs Chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).parent
TEXTS = ("If the file does not [MASK], an error is raised.", "Check the path of the file.")


def screenshot(browser: str, page: Path, picture: Path, height: int) -> None:
    """Writes a picture of the upper `height` pixels of `page`, an HTML file."""
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size=1280,{height}"]
    wait = "--virtual-time-budget=5000"  # milliseconds, until the page has drawn everything
    command = [browser, *flags, wait, f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    """Makes both pages and their pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="the workdir of a run")
    run = parser.parse_args().run
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("error: Chromium is not installed: install it (Debian: apt install chromium).")
    with tempfile.TemporaryDirectory() as folder:
        for name, height, arguments in (
            ("attention", 900, ["visualize", *TEXTS]),
            ("report", 900, ["report", run]),
        ):
            page = Path(folder) / f"{name}.html"
            command = [sys.executable, "-m", "bertjax", *arguments, "--output", str(page)]
            subprocess.run(command, check=True)
            screenshot(browser, page, IMAGES / f"{name}.png", height)


if __name__ == "__main__":
    main()
