"""Opens a page in headless Chromium, uses it as a reader does, and returns what it then shows."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

# `seen` becomes the title of the document, which --dump-dom prints.
_HARNESS = """
<script>
const seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(event.message));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => seen.errors.push(event.blockedURI));
const text = (id) => document.getElementById(id).textContent;
const press = (key, target = document) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const pointer = (target, type, x, y) => target.dispatchEvent(
  new PointerEvent(type, { bubbles: true, pointerType: "mouse", clientX: x, clientY: y }));
const timer = setInterval(async () => {
  if (READY) return;
  clearInterval(timer);
  try { await (async () => { SCRIPT })(); } catch (error) { seen.errors.push(String(error)); }
  seen.requests = performance.getEntriesByType("resource").length;
  document.title = JSON.stringify(seen);
}, 20);
</script>
"""


def data_of(page: str) -> Any:
    """Returns the data in a page of HTML."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def used(page: str, script: str, folder: Path, *, width: int = 1280) -> dict[str, Any]:
    """Opens a page, runs JavaScript in it, and returns the object `seen`, which the script fills.

    `seen.errors` are errors and blocked requests; `seen.requests` is the number of requests.
    Anything that the page writes to the console raises AssertionError.
    """
    assert CHROMIUM is not None
    ready = 'document.body.dataset.ready !== "yes"'
    harness = _HARNESS.replace("READY", ready).replace("SCRIPT", script)
    file = folder / f"used{width}.html"
    file.write_text(page.replace("</body>", harness + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},900",
         "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", "--dump-dom",
         file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title and title[1].startswith("{"), done.stdout[:1000] + done.stderr[-2000:]
    return json.loads(html.unescape(title[1]))
