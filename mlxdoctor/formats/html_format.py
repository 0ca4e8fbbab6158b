"""The report as one HTML file: the Markdown, rendered, with its pictures inside.

The page is made from the Markdown and not beside it, so that the two can't differ in
what they say or in which order. It holds no script and asks nobody for anything: a
content security policy refuses whatever should have slipped in.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape as escaped
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats import markdown
from mlxdoctor.formats.escape import visible
from mlxdoctor.formats.format import Format
from mlxdoctor.report import Report

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token
    from markdown_it.utils import EnvType, OptionsDict

#: Fewer sections than this need no table of contents.
MIN_SECTIONS = 4
#: The only HTML in our Markdown, each on a line of its own; nothing else passes.
_FOLDING = re.compile(r"</?details>|<summary>([^<>&]*)</summary>")
#: The only addresses that a link may have.
_ADDRESS = re.compile(r"https://[\w\-./#?=&%+~]+\Z", re.ASCII)
_OTHER = re.compile(r"[^a-z0-9]+")
_ALIGNMENTS = {"text-align:left": "", "text-align:center": "center", "text-align:right": "right"}


def render(report: Report) -> str:
    """The report as one HTML page that needs nothing but itself."""
    import jinja2
    from markupsafe import Markup

    from mlxdoctor.formats.figures import draw

    pictures = draw.draw(report)
    text = markdown.render(report, {name: name for name in pictures})
    parser = _parser(pictures)
    tokens = parser.parse(text)
    sections = _anchored(tokens)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlxdoctor.formats"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style = environment.get_template("report.css.j2").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        title=visible(f"{report.name}: {_title(tokens)}"),
        style=Markup(style),
        style_digest=digest,
        sections=sections if len(sections) >= MIN_SECTIONS else [],
        # Made by the renderer from Markdown in which everything foreign is escaped.
        body=Markup(parser.renderer.render(tokens, parser.options, {})),
        version=report.version,
    )


def _parser(pictures: Mapping[str, bytes]) -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Without the rules for HTML, and so without any HTML but the folding below.
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["html_block", "html_inline", "autolink"])
    # The documented way to say which addresses are good.
    parser.validateLink = (  # type: ignore[method-assign]
        lambda url: url in pictures or _ADDRESS.match(url) is not None
    )
    parser.block.ruler.before(
        "paragraph", "folding", _folding, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )

    def image(
        renderer: RendererHTML,
        tokens: Sequence[Token],
        index: int,
        options: OptionsDict,
        env: EnvType,
    ) -> str:
        token = tokens[index]
        alt = renderer.renderInlineAsText(token.children or [], options, env)
        picture = pictures.get(str(token.attrs["src"]))
        if picture is None:
            return escaped(alt)
        content = base64.b64encode(picture).decode()
        shown = f'<img src="data:image/png;base64,{content}" alt="{escaped(alt)}">'
        return f'<span class="picture" tabindex="0">{shown}</span>'

    parser.add_render_rule("image", image)
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    return parser


def _folding(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The lines of `<details>` and `<summary>` that our own template writes."""
    del end
    line = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    if not _FOLDING.fullmatch(line):
        return False
    if not silent:
        token = state.push("folding", "", 0)
        token.content = line
        token.map = [start, start + 1]
        state.line = start + 1
    return True


def _anchored(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give every heading an id of its own; returns (id, title) of the sections."""
    taken: dict[str, int] = {}
    sections = []
    for index, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        title = _text(tokens[index + 1])
        name = _OTHER.sub("-", title.lower()).strip("-")
        taken[name] = taken.get(name, 0) + 1
        anchor = name if taken[name] == 1 else f"{name}-{taken[name]}"
        token.attrSet("id", anchor)
        if token.tag == "h2":
            sections.append((anchor, title))
    return sections


def _title(tokens: Sequence[Token]) -> str:
    return next(
        _text(tokens[index + 1]) for index, one in enumerate(tokens) if one.type == "heading_open"
    )


def _text(inline: Token) -> str:
    return "".join(one.content for one in inline.children or [])


def _rule_folding(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return tokens[index].content + "\n"


def _rule_table_open(*_: Any) -> str:
    # Focusable, so that a keyboard can scroll it; the label says what it is.
    return '<div class="wide" tabindex="0" role="group" aria-label="table">\n<table>\n'


def _rule_table_close(*_: Any) -> str:
    return "</table>\n</div>\n"


def _rule_cell(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    """Alignment as a class: the policy refuses styles on elements."""
    token = tokens[index]
    style = str(token.attrs.pop("style", ""))
    if _ALIGNMENTS.get(style):
        token.attrSet("class", _ALIGNMENTS[style])
    return str(renderer.renderToken(tokens, index, *rest))


def _rule_fence(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    lines = token.content.rstrip("\n").split("\n")
    shown = [_diff_line(one) if token.info == "diff" else escaped(one) for one in lines]
    return f'<pre tabindex="0"><code>{chr(10).join(shown)}\n</code></pre>\n'


def _diff_line(line: str) -> str:
    kinds = {"+": "ins", "-": "del"}
    tag = kinds.get(line[:1]) if not line.startswith(("+++", "---")) else None
    return f"<{tag}>{escaped(line)}</{tag}>" if tag else escaped(line)


def _rule_link_open(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    tokens[index].attrSet("rel", "noopener noreferrer")
    return str(renderer.renderToken(tokens, index, *rest))


_RULES = {
    "folding": _rule_folding,
    "table_open": _rule_table_open,
    "table_close": _rule_table_close,
    "th_open": _rule_cell,
    "td_open": _rule_cell,
    "fence": _rule_fence,
    "link_open": _rule_link_open,
}

FORMAT = Format("html", "html", report=render)
