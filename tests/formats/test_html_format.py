from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mlxdoctor.cli import main
from mlxdoctor.formats import figures, html_format, markdown
from mlxdoctor.formats.format import files_of
from tests.formats import sample
from tests.formats.page import Page
from tests.formats.test_escape import HOSTILE
from tests.formats.test_markdown import planted

FAILED = Path(__file__).parents[2] / "fixtures" / "runs" / "rate-far-too-high-nan"
KINDS = ["unhealthy", "healthy", "inconclusive"]
_STRUCTURE = ("html", "head", "meta", "title", "link", "style", "body", "main", "nav", "details")
_TEXT = ("summary", "h1", "h2", "h3", "p", "ul", "ol", "li", "a", "em", "strong", "br", "img")
_CODE = ("code", "pre", "ins", "del", "span")
_TABLES = ("div", "table", "thead", "tbody", "tr", "th", "td")
#: What a page may consist of: nothing that runs, loads, embeds or sends.
ELEMENTS = frozenset((*_STRUCTURE, *_TEXT, *_CODE, *_TABLES))


def rendered(data: dict[str, Any]) -> str:
    return html_format.render(sample.made(data))


def page(data: dict[str, Any]) -> Page:
    return Page(rendered(data))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_well_formed_and_consists_of_harmless_elements(kind: str) -> None:
    found = page(getattr(sample, kind)())
    assert found.unbalanced == []
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_loaded_from_elsewhere(kind: str) -> None:
    source = rendered(getattr(sample, kind)())
    found = Page(source)
    assert all(str(one["src"]).startswith("data:image/png;base64,") for one in found.all("img"))
    assert [one["href"] for one in found.all("link")] == ["data:,"]
    assert "url(" not in source
    assert "@import" not in source
    # An inline style would need a policy that lets styles in, whoever wrote them.
    assert not any("style" in attributes for _, attributes in found.elements)


@pytest.mark.slow
def test_the_policy_lets_in_this_style_and_pictures_inside_and_nothing_else() -> None:
    found = page(sample.unhealthy())
    policy = next(
        str(one["content"])
        for one in found.all("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    style = base64.b64encode(hashlib.sha256(found.text("style").encode()).digest()).decode()
    assert policy.split("; ") == [
        "default-src 'none'",
        "img-src data:",
        f"style-src 'sha256-{style}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_headings_and_their_order_are_those_of_the_markdown(kind: str) -> None:
    data = getattr(sample, kind)()
    tokens = MarkdownIt("commonmark").parse(markdown.render(sample.made(data)))
    wanted = [
        "".join(one.content for one in tokens[index + 1].children or [])
        for index, token in enumerate(tokens)
        if token.type == "heading_open"
    ]
    found = page(data)
    shown = [text for inside, text in found.texts if {"h1", "h2", "h3"} & set(inside)]
    assert shown == wanted


@pytest.mark.slow
def test_every_word_of_the_markdown_is_on_the_page() -> None:
    data = sample.unhealthy()
    text = re.sub(r"```\w+|</?(?:summary|details)>", "", markdown.render(sample.made(data)))
    words = re.findall(r"[A-Za-z]{4,}", text)
    shown = page(data).text()
    assert [one for one in words if one not in shown] == []


@pytest.mark.slow
def test_every_heading_can_be_linked_to_and_the_contents_lead_there() -> None:
    found = page(sample.unhealthy())
    anchors = [str(one["id"]) for tag in ("h1", "h2", "h3") for one in found.all(tag)]
    assert len(set(anchors)) == len(anchors)
    assert "differential-diagnosis" in anchors
    linked = [str(one["href"]) for one in found.all("a")]
    assert linked == [f"#{one['id']}" for one in found.all("h2")]


def test_a_short_report_has_no_contents() -> None:
    data = sample.inconclusive()
    sections = page(data).all("h2")
    assert bool(page(data).all("nav")) == (len(sections) >= html_format.MIN_SECTIONS)


@pytest.mark.slow
def test_pictures_are_inside_have_a_text_in_their_stead_and_can_be_opened() -> None:
    from PIL import Image

    pictures = page(sample.unhealthy()).all("img")
    assert [one["alt"] for one in pictures] == [
        figures.PICTURES[name].title
        for name, data in sample.unhealthy()["figures"].items()
        if data is not None
    ]
    for one in pictures:
        content = base64.b64decode(str(one["src"]).partition(",")[2])
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            assert picture.width > 100


@pytest.mark.slow
def test_what_is_folded_in_the_markdown_is_folded_on_the_page() -> None:
    found = page(sample.unhealthy())
    summaries = [text for inside, text in found.texts if inside[-1:] == ("summary",)]
    assert summaries == [
        "How each score came about",
        "Notes that are no sign of failure",
        "SHA-256 of every file that was read",
        "Contents",
    ]
    folded = next(text for inside, text in found.texts if "cdcdcdcdcdcdcdcd" in text)
    inside = next(inside for inside, text in found.texts if text == folded)
    assert "details" in inside


@pytest.mark.slow
def test_tables_scroll_inside_and_numbers_stand_on_the_right() -> None:
    source = rendered(sample.unhealthy())
    assert source.count("<table>") == source.count('aria-label="table">\n<table>') > 3
    assert '<td class="right">5.25</td>' in source


@pytest.mark.slow
def test_a_diff_shows_what_is_added_and_what_is_gone() -> None:
    source = rendered(sample.unhealthy())
    assert "<del>-  &quot;learning_rate&quot;: 0.0002,</del>" in source
    assert "<ins>+  &quot;learning_rate&quot;: 2e-05,</ins>" in source
    assert "<ins>+++" not in source


@pytest.mark.slow
def test_the_knowledge_base_may_link_and_only_to_secure_addresses() -> None:
    data = sample.unhealthy()
    data["causes"]["learning-rate-too-high"]["remedy"] = (
        "See [the issue](https://github.com/ml-explore/mlx-lm/issues/1), "
        "[bad](javascript:alert(1)), [plain](http://a.example), [file](file:///etc/passwd), "
        "[other](//evil.example) and ![pixel](https://evil.example/p.png)."
    )
    found = page(data)
    outward = [one for one in found.all("a") if not str(one["href"]).startswith("#")]
    assert {str(one["href"]) for one in outward} == {
        "https://github.com/ml-explore/mlx-lm/issues/1"
    }
    assert {one["rel"] for one in outward} == {"noopener noreferrer"}
    assert all(str(one["src"]).startswith("data:") for one in found.all("img"))


@pytest.mark.parametrize("text", [*HOSTILE, "<details>", "</details>", "<summary>x</summary>"])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_artifacts_add_no_element(text: str, kind: str, monkeypatch: Any) -> None:
    # Pictures are tested where they are drawn; here they would take the time of the rest.
    monkeypatch.setattr("mlxdoctor.formats.figures.draw", lambda *_: {"loss": b"", "drift": b""})
    clean = getattr(sample, kind)()
    kept = {"causes", "tool", "verdict", "diagnosis", "contributing", "schema_version"}

    def with_text(one: str) -> Page:
        return page({key: v if key in kept else planted(v, one) for key, v in clean.items()})

    hostile, harmless = with_text(text), with_text("word")
    assert hostile.structure == harmless.structure
    assert hostile.unbalanced == []
    shown = hostile.text()
    assert not any(one in shown for one in "\x1b\x00\x07\u202e\u2066\u200b\ufeff\ud800")


@pytest.mark.slow
def test_html_in_the_markdown_itself_is_shown_and_not_obeyed() -> None:
    # Should escaping fail one day, the renderer still takes no HTML.
    data = copy.deepcopy(sample.unhealthy())
    data["causes"]["learning-rate-too-high"]["remedy"] = (
        "<script>alert(1)</script> <img src=x onerror=alert(1)>\n\n<iframe src='x'></iframe>"
    )
    found = page(data)
    assert {tag for tag, _ in found.elements} <= ELEMENTS
    assert all(str(one["src"]).startswith("data:") for one in found.all("img"))
    assert "<script>alert(1)</script>" in found.text()


@pytest.mark.slow
def test_the_file_is_written_beside_the_others_and_needs_none_of_them(tmp_path: Path) -> None:
    code = main(["diagnose", str(FAILED), "--no-generate", "--format", "html", "-o", str(tmp_path)])
    assert code == 1
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["report.html"]


@pytest.mark.slow
def test_it_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(FAILED), "--no-generate", "--stdout", "html"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("<!DOCTYPE html>\n")
    assert printed.endswith("</html>\n")
    assert Page(printed).text("h1").startswith("Root cause: ")


@pytest.mark.slow
def test_all_formats_at_once_say_the_same() -> None:
    report = sample.made(sample.unhealthy())
    files: dict[str, bytes] = {}
    for name in ("markdown", "html", "json"):
        files |= files_of(report, name)
    assert {"report.md", "report.html", "report.json"} < set(files)
    headline = "Root cause: the learning rate is too high"
    assert headline in files["report.md"].decode()
    assert headline in files["report.html"].decode()
    assert json.loads(files["report.json"])["verdict"] == "unhealthy"
