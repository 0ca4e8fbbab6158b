"""The report as one HTML file: the Markdown, rendered, with its pictures inside.

It holds no script and asks nobody for anything: a content security policy refuses whatever should
have slipped in.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape as escaped
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats import figures, markdown
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.summary import headline
from mlxdoctor.report import Report
from mlxdoctor.safety.quoting import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

#: The only HTML in our Markdown, each on a line of its own; nothing else passes.
_FOLDING = re.compile(r"</?details>|<summary>([^<>&]*)</summary>")
#: The only addresses that a link may have.
_ADDRESS = re.compile(r"https://[\w\-./#?=&%+~]+\Z", re.ASCII)
#: Focusable, so that a keyboard can scroll it; the label says what it is.
_TABLE = '<div class="wide" tabindex="0" role="group" aria-label="table">\n<table>\n'
#: Kind of a line of a diff -> the element it is shown as.
_DIFF = {"+": "ins", "-": "del"}


def render(report: Report) -> str:
    """The report as one HTML page that needs nothing but itself."""
    from markupsafe import Markup

    pictures = figures.draw(report)
    parser = _parser(pictures)
    page = markdown.render(report, {name: name for name in pictures})
    environment = markdown.templates()
    style = environment.get_template("report.css.j2").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        title=visible(f"{report.name}: {headline(report)}"),
        style=Markup(style),
        style_digest=digest,
        # Made by the renderer from Markdown in which everything foreign is escaped.
        body=Markup(parser.render(page, {"pictures": pictures})),
        version=report.version,
    )


def first_screen(report: Report) -> str:
    """What a reader sees first, and the losses, as a piece of HTML: for a cell of a notebook."""
    shown = report.figures.get("loss")
    pictures = {"loss": figures.png("loss", shown)} if shown is not None else {}
    page = markdown.render(report).partition("\n## ")[0]
    page += "\n\n![losses](loss)\n" if pictures else ""
    return str(_parser(pictures).render(page, {"pictures": pictures}))


def _parser(pictures: Mapping[str, bytes]) -> MarkdownIt:
    from markdown_it import MarkdownIt

    # Without any HTML but the folding below.
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["html_block", "html_inline", "autolink"])
    # The documented way to say which addresses are good.
    parser.validateLink = (  # type: ignore[method-assign]
        lambda url: url in pictures or _ADDRESS.match(url) is not None
    )
    parser.block.ruler.before(
        "paragraph", "folding", _folding, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    for name, rule in _RULES.items():
        parser.add_render_rule(name, rule)
    return parser


def _folding(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    """The lines of `<details>` and `<summary>` that our own template writes."""
    line = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    if not _FOLDING.fullmatch(line):
        return False
    if not silent:
        token = state.push("folding", "", 0)
        token.content = f"{line}\n"
        token.map = [start, start + 1]
        state.line = start + 1
    return True


# Rules of the renderer: each makes the HTML of the token at an index.


def _image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any
) -> str:
    token = tokens[index]
    text = escaped(renderer.renderInlineAsText(token.children or [], options, env))
    picture = env["pictures"].get(str(token.attrs["src"]))
    if picture is None:
        return text
    content = base64.b64encode(picture).decode()
    shown = f'<img src="data:image/png;base64,{content}" alt="{text}">'
    return f'<span class="picture" tabindex="0">{shown}</span>'


def _cell(renderer: RendererHTML, tokens: Sequence[Token], index: int, *rest: Any) -> str:
    """Alignment as a class: the policy refuses styles on elements."""
    token = tokens[index]
    if token.attrs.pop("style", "") == "text-align:right":
        token.attrSet("class", "right")
    return str(renderer.renderToken(tokens, index, *rest))


def _fence(_: RendererHTML, tokens: Sequence[Token], index: int, *__: Any) -> str:
    token = tokens[index]
    lines = []
    for line in token.content.rstrip("\n").split("\n"):
        is_changed = token.info == "diff" and not line.startswith(("+++", "---"))
        tag = _DIFF.get(line[:1]) if is_changed else None
        lines.append(f"<{tag}>{escaped(line)}</{tag}>" if tag else escaped(line))
    code = "\n".join(lines)
    return f'<pre tabindex="0"><code>{code}\n</code></pre>\n'


_RULES: Mapping[str, Callable[..., str]] = {
    "fence": _fence,
    "folding": lambda _, tokens, index, *__: tokens[index].content,
    "image": _image,
    "table_close": lambda *_: "</table>\n</div>\n",
    "table_open": lambda *_: _TABLE,
    "td_open": _cell,
    "th_open": _cell,
}

FORMAT = Format("html", "html", report=render)
