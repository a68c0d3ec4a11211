"""How long the pages of the built site are: ``mkdocs build``, then ``python docs/screens.py``.

It prints each page's height in screens of 1,280 x 900 pixels, the longest first, and fails where a
page is longer than `LONGEST`. On a phone's width it prints what is wider than the screen.
``--pictures FOLDER PAGE...`` also writes pictures: desktop, dark colors, phone.
Needs Chromium on the path.
"""

import argparse
import base64
import functools
import http.server
import sys
import threading
from pathlib import Path

from screenshot import Page

ROOT = Path(__file__).resolve().parents[1]
DESKTOP, PHONE = (1280, 900), (390, 844)
LONGEST = 15.0  # screens of the desktop
LINKED = ("tests/", "benchmarks/", "examples/")  # files outside of docs, as they are

HEIGHT = "document.documentElement.scrollHeight"
LOADED = "document.readyState === 'complete' && document.fonts.status === 'loaded'"
# Elements that reach past the right edge, outside of those that scroll by themselves.
WIDE = """[...document.querySelectorAll('.md-content *')].filter(e => {
  if (e.getBoundingClientRect().right <= innerWidth + 1 || !e.getClientRects().length) return false;
  for (let p = e; p && p !== document.body; p = p.parentElement)
    if (p !== e && ['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX))
      return false;
  return !['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX);
}).map(e => e.tagName.toLowerCase() + ': ' + e.textContent.trim().slice(0, 60)).slice(0, 3)"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        """Print nothing."""


def serve(site: Path) -> http.server.ThreadingHTTPServer:
    """Serve the folder on a free port of this machine."""
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def evaluate(page: Page, expression: str):
    """Return the value of JavaScript in the page."""
    found = page.call("Runtime.evaluate", expression=expression, returnByValue=True)
    return found["result"].get("value")


def show(page: Page, url: str, size: tuple[int, int], dark: bool = False) -> None:
    """Load the address at a size of the window."""
    phone = size == PHONE
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": phone}
    page.call("Emulation.setDeviceMetricsOverride", **metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    page.call("Emulation.setEmulatedMedia", features=scheme)
    page.call("Page.navigate", url=url)
    page.wait(
        lambda p: evaluate(p, f"location.href === {url!r} && {LOADED}"), f"{url} did not load"
    )


def picture(page: Page, most: int = 4000) -> bytes:
    """Return a PNG of the page down to a height."""
    width, height = evaluate(page, f"[innerWidth, Math.min({HEIGHT}, {most})]")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    found = page.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    return base64.b64decode(found["data"])


def main() -> int:
    """Print the pages' lengths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("pages", nargs="*", help="such as tutorials/image; all when left out")
    options = parser.parse_args()
    names = options.pages or sorted(
        path.parent.relative_to(options.site).as_posix()
        for path in options.site.rglob("index.html")
        if not path.parent.relative_to(options.site).as_posix().startswith(LINKED)
    )
    if missing := [name for name in names if not (options.site / name / "index.html").exists()]:
        parser.error(f"{options.site} has no {', '.join(missing)}; the first page is .")
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    server = serve(options.site)
    address = f"http://127.0.0.1:{server.server_port}"
    screens, wide = {}, {}
    with Page("about:blank", *DESKTOP) as page:
        # The site stores the choice of colors, which would win over the scheme.
        page.call("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")
        for name in names:
            url = f"{address}/" if name == "." else f"{address}/{name}/"
            show(page, url, DESKTOP)
            screens[name] = evaluate(page, HEIGHT) / DESKTOP[1]
            if options.pictures:
                stem = str(options.pictures / (name.replace("/", "_").strip(".") or "index"))
                Path(f"{stem}.png").write_bytes(picture(page))
                show(page, url, DESKTOP, dark=True)
                Path(f"{stem}_dark.png").write_bytes(picture(page, 1800))
            show(page, url, PHONE)
            wide[name] = evaluate(page, WIDE)
            if options.pictures:
                Path(f"{stem}_phone.png").write_bytes(picture(page))
    for name in sorted(screens, key=lambda name: -screens[name]):
        print(f"{screens[name]:6.1f}  {name}")
    for name, elements in wide.items():
        if elements:
            print(f"wider than a phone: {name}: {elements}")
    long = [name for name, number in screens.items() if number > LONGEST]
    if long:
        print(f"longer than {LONGEST:g} screens: {', '.join(long)}: split or shorten them")
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
