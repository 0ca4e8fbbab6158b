"""Texts changed wherever they stand: folders cut off paths, and quotations, which are marked."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.safety.quoting import MAX_QUOTED, quoted, without_quotations
from mlxdoctor.safety.texts import as_seen_here, mapped
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder and the user's."""
    monkeypatch.setattr(Path, "cwd", lambda: Path("/train"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/train/runs/a/train.log", "runs/a/train.log"),
        ("/train: is a folder", ".: is a folder"),
        ("/train/", "."),
        ("in '/train/runs/x.json', line 3", "in 'runs/x.json', line 3"),
        ("/trainshop/x and /homework/x", "/trainshop/x and /homework/x"),
        ("/mnt/train/x", "/mnt/train/x"),
        ("nothing here", "nothing here"),
    ],
)
def test_absolute_folders_are_cut_off_paths(text: str, expected: str) -> None:
    assert as_seen_here({"a": [text]}) == {"a": [expected]}


def test_the_home_folder_becomes_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: Path("/home/me/train"))
    assert as_seen_here("/home/me/train/x /home/me/y") == "x ~/y"
    assert as_seen_here("/home/me: is a folder") == "~: is a folder"
    monkeypatch.setattr(Path, "cwd", Path.home)
    assert as_seen_here("/home/me") == "~"


def test_other_values_pass_unchanged() -> None:
    value = {"a": (1, None, 2.5)}
    assert as_seen_here(value) is value


def test_texts_of_a_frozen_dataclass_are_changed_and_what_it_is_stays() -> None:
    found = Finding("a.b", Severity.ERROR, "low", {"text": "low", "all": ("low", 1)}, where="low")
    loud = mapped(found, str.upper, frozenset({"code", "fingerprint"}))
    assert (loud.code, loud.severity, loud.message, loud.where) == (
        "a.b",
        Severity.ERROR,
        "LOW",
        "LOW",
    )
    assert dict(loud.measured) == {"text": "LOW", "all": ("LOW", 1)}
    assert loud.fingerprint == found.fingerprint
    assert mapped(found, str) is found


def test_a_quotation_is_marked_cut_and_in_one_line() -> None:
    assert quoted("it's") == "“it's”"
    assert quoted("a\nb\x1b\u202e") == "“a\\nb\\x1b\\u202e”"
    assert len(quoted("x" * 500)) == MAX_QUOTED + 3
    assert quoted("x" * MAX_QUOTED) == f"“{'x' * MAX_QUOTED}”"


@pytest.mark.parametrize("text", ["plain", "a “b” c", "”", "“", "a\n”b“\nc", ""])
def test_whatever_is_quoted_can_be_taken_out(text: str) -> None:
    message = f"mostly {quoted(text)}; and {quoted(text + 'x')}."
    assert without_quotations(message) == "mostly “(withheld)”; and “(withheld)”."
    # Cut off somewhere, a quotation has no end.
    assert without_quotations(message[:9]) in ("mostly “(withheld)”", "mostly “(withheld)”; ")


def test_a_finding_is_the_same_one_whatever_it_quotes() -> None:
    def found(prompt: str) -> Finding:
        return Finding("score.worse", Severity.ERROR, "", where=f"prompt {quoted(prompt)}")

    assert found("one").fingerprint == found("another").fingerprint
    elsewhere = Finding("score.worse", Severity.ERROR, "", where="row 7")
    assert found("one").fingerprint != elsewhere.fingerprint


def _represented(path: Path) -> Iterator[str]:
    """What a module shows with `!r` or `repr`, which `quoted` is there for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):
            yield ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "repr":
            yield ast.unparse(node.args[0])


#: Names of a vocabulary, of configuration keys and of markers in a template: no text of rows.
NAMES = {
    "quantization_consistency.py": {"_OWN"},
    "tokenizer_consistency.py": {
        "' '.join((tokenizer.token(token) for token in terminator[:4]))",
        "first",
        "tokenizer.token(token)",
        "tokenizer.token(tokenizer.pad_token_id)",
    },
}


def test_checks_quote_through_the_one_function_that_marks_it() -> None:
    represented = {path.name: set(_represented(path)) for path in (ROOT / "checks").glob("*.py")}
    assert {name: texts for name, texts in represented.items() if texts} == NAMES
