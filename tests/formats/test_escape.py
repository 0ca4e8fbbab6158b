import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mlxdoctor.formats import escape
from mlxdoctor.safety import quoting
from mlxdoctor.safety.quoting import visible

HOSTILE = [
    "[click](https://evil.example)",
    "![](https://evil.example/pixel.png)",
    "[ref]: https://evil.example",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- hidden -->",
    "https://evil.example and www.evil.example",
    "<https://evil.example>",
    "# heading",
    "> quote",
    "- item",
    "+ item",
    "1. item",
    "2) item",
    "---",
    "===",
    "***",
    "    indented code",
    "| a | b |\n|---|---|\n| c | d |",
    "**bold** _em_ ~~gone~~ `code` ``` fence",
    "```\nfence\n```",
    "a\n\n# heading after a break",
    "&lt;b&gt; &#60;b&#62; &amp;",
    "\\[escaped\\](https://evil.example)",
    "\\",
    "trailing backslash \\",
    "`unbalanced [link](https://evil.example)",
    "`a](https://evil.example)`",
    "$x$ and $$y$$",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "abc\u202egnp.exe",
    "\u2066isolate\u2069 \ufeffmark \u200bzero width",
    "\ud800 lone surrogate",
    "\x00\x08\x7f\x85\u2028\u2029",
    "*" * 50,
    "[" * 50,
]
ALLOWED = {"paragraph_open", "paragraph_close", "inline"}
ALLOWED_INLINE = {"text", "text_special", "code_inline"}


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def shown(text: str) -> str:
    """What a reader sees of one paragraph; fails where it is anything else."""
    tokens = parser().parse(text)
    assert {token.type for token in tokens} <= ALLOWED, tokens
    inline = [child for token in tokens for child in token.children or []]
    assert {child.type for child in inline} <= ALLOWED_INLINE, inline
    return "".join(
        f"`{child.content}`" if child.type == "code_inline" else child.content for child in inline
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(text: str) -> None:
    written = escape.markdown(text)
    assert shown(written) == visible(text).strip()
    # Nor does it leave a table's cell or inline code, or steer a terminal.
    table = f"| a | b |\n|---|---|\n| {written} | end |\n"
    cells = [token.content for token in parser().parse(table) if token.type == "inline"]
    assert (len(cells), cells[-1]) == (4, "end")
    shown(escape.code(text))
    printed = escape.terminal(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029\u2066-\u2069]", printed)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab1 .)#>-+=*_~`[]()!<>&;:/\\|$@\n\t"), max_size=60))
def test_any_mixture_of_markup_is_shown_literally(text: str) -> None:
    without_joiners = shown(escape.markdown(text)).replace("\u2060", "")
    assert without_joiners == visible(text).strip()


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_one_paragraph(text: str) -> None:
    shown(escape.markdown(text))


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("a`~\n #<["), max_size=60))
@example("a\n```\n# heading")
@example("a\n`````\n# heading")
def test_a_fence_can_not_be_closed_from_inside(text: str) -> None:
    tokens = parser().parse(escape.fenced(text))
    assert [token.type for token in tokens] == ["fence"]


def test_links_that_github_makes_by_itself_are_broken() -> None:
    text = escape.markdown("see https://evil.example, www.evil.example, a@evil.example, @team")
    assert "://" not in text
    assert "www." not in text
    assert not re.search(r"@\w", text)


def test_names_of_the_field_stay_readable() -> None:
    text = "learning_rate rose to 2e-05 (x10), -1.5 < 0.2; `lora_parameters.scale` is 20, 97% of it"
    assert escape.markdown(text) == text.replace("<", "&lt;")


def test_a_leading_underscore_is_escaped() -> None:
    assert escape.markdown("_a_ b_c") == "\\_a\\_ b_c"


def test_what_was_hidden_is_spelled_out() -> None:
    assert visible("\x1b[0m\u202e\n\ud800") == "\\x1b[0m\\u202e\\n\\ud800"


def test_joiners_and_other_scripts_are_left_alone() -> None:
    text = "नमस्ते 你好 می‌خواهم 👩‍💻"
    assert visible(text) == text


def test_long_text_is_cut_and_says_so() -> None:
    text = "x" * (quoting.MAX_CHARACTERS + 7)
    assert quoting.cut(text).endswith("… (7 more characters)")
    assert quoting.cut("x" * quoting.MAX_CHARACTERS) == "x" * quoting.MAX_CHARACTERS
