"""An HTML page taken apart as a browser would, and what of a page does something."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from markdown_it import MarkdownIt
from markdown_it.token import Token

_VOID = frozenset({"meta", "link", "img", "br", "hr"})
_STRUCTURE = ("html", "head", "meta", "title", "link", "style", "body", "main", "details")
_TEXT = ("summary", "h1", "h2", "h3", "p", "ul", "ol", "li", "a", "em", "strong", "br", "img")
_CODE = ("code", "pre", "ins", "del", "span")
_TABLES = ("div", "table", "thead", "tbody", "tr", "th", "td")
#: What a page may consist of: nothing that runs, loads, embeds or sends.
ELEMENTS = frozenset((*_STRUCTURE, *_TEXT, *_CODE, *_TABLES))
#: What gives text in Markdown a meaning of its own.
LIVE = frozenset(
    {"heading_open", "strong_open", "em_open", "html_block", "image", "code_block"}
    | {"link_open", "html_inline", "s_open"}
)


@dataclass
class Page(HTMLParser):
    """The elements of a page in their order, and its text.

    Attributes:
        elements: name and attributes of each.
        texts: (the elements around it, text) of every stretch of text.
        unbalanced: end tags that close nothing that is open.
    """

    source: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self._open), data))

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", {"text": data}))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of that name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str | None = None) -> str:
        """The text of the page, or that inside elements of one name."""
        return "".join(one for inside, one in self.texts if tag is None or tag in inside)


def live_in_page(source: str, word: str) -> list[str]:
    """What of an HTML page is not harmless, or has `word` where it could act."""
    page = Page(source)
    strange = [tag for tag, _ in page.elements if tag not in ELEMENTS]
    values = [str(value) for _, one in page.elements for value in one.values()]
    ours = {"h1", "h2", "h3", "summary"}
    titles = [text for inside, text in page.texts if ours & set(inside)]
    loaded = [str(one["src"]) for one in page.all("img")]
    linked = [str(one["href"]) for one in page.all("a")]
    return [
        *strange,
        *page.unbalanced,
        *(one for one in (*values, *titles) if word in one),
        *(one for one in loaded if not one.startswith("data:image/png;base64,")),
        *(one for one in linked if not one.startswith("#")),
    ]


def live_in_markdown(text: str, word: str) -> list[str]:
    """What of a page in Markdown is more than text and has `word` in it, and foreign markup."""
    parser = MarkdownIt("commonmark", {"html": True, "linkify": False})
    tokens = list(_flat(parser.enable(["table", "strikethrough"]).parse(text)))
    found = []
    for token, after in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        inside = after.content if token.type.endswith("_open") else ""
        held = token.content + inside + str(token.attrs.get("src", ""))
        is_foreign = token.type in {"link_open", "html_inline", "s_open"}
        if token.type == "html_block":
            is_foreign = not token.content.strip().startswith(("<details>", "</details>"))
        if token.type == "image":
            is_foreign = not str(token.attrs["src"]).startswith("figures/")
        if is_foreign or (token.type in LIVE and word in held):
            found.append(token.type)
    return found


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])
