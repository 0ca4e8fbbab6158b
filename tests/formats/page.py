"""An HTML page taken apart, as a browser would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"meta", "link", "img", "br", "hr"})


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

    @property
    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements with the names of their attributes; the styles of code left out."""
        shown = [one for one in self.elements if one[0] not in {"code", "ins", "del"}]
        return [(tag, tuple(attributes)) for tag, attributes in shown]
