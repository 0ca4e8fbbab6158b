"""The HTML report in a real browser: what a parser can't see.

Skipped where Playwright or a Chromium is missing; `MLXDOCTOR_CHROMIUM` names one that is
not on the path.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.formats import html_format
from tests.formats import sample

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, DESK = 390, 1280
#: The contrast that WCAG 2.2 asks of text (success criterion 1.4.3, level AA).
CONTRAST = 4.5
#: Colours of the text and of the ground behind each element that holds text, and its size.
COLOURS = """
() => {
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c !== 'rgba(0, 0, 0, 0)') return c;
    }
    return 'none';
  };
  const holders = [...document.querySelectorAll('body *')].filter(
    e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  return [...new Set(holders.map(e => getComputedStyle(e).color + '|' + ground(e)))];
}
"""


@dataclass
class Visit:
    """A page as a browser shows it, and what it did meanwhile."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        named = os.environ.get("MLXDOCTOR_CHROMIUM")
        found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
        found = found or running.chromium.executable_path
        if not Path(found).exists():
            pytest.skip("there is no Chromium here; `playwright install chromium` fetches one")
        # As root, which a container often is, Chromium starts only without its sandbox.
        started = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


def visit(browser: Any, folder: Path, data: dict[str, Any], width: int, **options: Any) -> Visit:
    path = folder / "report.html"
    path.write_text(html_format.render(sample.made(data)), "utf-8")
    # No network at all: a report is read on a train.
    context = browser.new_context(
        viewport={"width": width, "height": 844}, offline=True, bypass_csp=False, **options
    )
    made = Visit(context.new_page(), path.as_uri())
    made.page.on("console", lambda message: made.complaints.append(message.text))
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    made.page.on("dialog", lambda dialog: made.complaints.append(dialog.message))
    made.page.on("request", lambda request: made.requests.append(request.url))
    made.page.goto(made.address)
    for one in made.page.query_selector_all("details"):
        one.evaluate("element => element.open = true")
    return made


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("kind", ["unhealthy", "healthy", "inconclusive"])
def test_it_loads_nothing_complains_of_nothing_and_fits(
    browser: Any, tmp_path: Path, kind: str, width: int
) -> None:
    seen = visit(browser, tmp_path, getattr(sample, kind)(), width)
    assert seen.complaints == []
    elsewhere = [one for one in seen.requests if not one.startswith("data:")]
    assert elsewhere == [seen.address]
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    # What is too wide scrolls inside its own frame; all else ends within the screen.
    outside = seen.page.evaluate(
        "width => [...document.querySelectorAll('body *')]"
        ".filter(e => !e.closest('.wide, .picture, pre'))"
        ".filter(e => e.getBoundingClientRect().right > width)"
        ".map(e => e.outerHTML.slice(0, 80))",
        width,
    )
    assert outside == []


def test_pictures_are_decoded_and_what_is_wide_scrolls_inside(browser: Any, tmp_path: Path) -> None:
    seen = visit(browser, tmp_path, sample.unhealthy(), PHONE)
    sizes = seen.page.evaluate("[...document.images].map(i => [i.naturalWidth, i.clientWidth])")
    assert len(sizes) == 5
    # Smaller, their labels could not be read; they scroll inside instead.
    assert all(natural > 100 and shown > PHONE / 2 for natural, shown in sizes)
    frames = seen.page.evaluate(
        "[...document.querySelectorAll('.wide')].map(e => [e.scrollWidth, e.clientWidth])"
    )
    assert any(content > frame for content, frame in frames)
    assert all(frame <= PHONE for _, frame in frames)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast(browser: Any, tmp_path: Path, scheme: str) -> None:
    seen = visit(browser, tmp_path, sample.unhealthy(), DESK, color_scheme=scheme)
    pairs = [one.split("|") for one in seen.page.evaluate(COLOURS)]
    assert len(pairs) > 3
    assert [one for one in pairs if contrast(*map(luminance, one)) < CONTRAST] == []
    ground = luminance(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (ground < 0.1) == (scheme == "dark")


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, 0 to 1, as WCAG 2.2 defines it."""
    parts = [int(one) / 255 for one in colour.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: float, second: float) -> float:
    """The ratio of two luminances, 1 to 21."""
    low, high = sorted((first, second))
    return (high + 0.05) / (low + 0.05)
