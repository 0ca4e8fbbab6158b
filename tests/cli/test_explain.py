from __future__ import annotations

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.check import discover
from mlxdoctor.cli import EXIT_UNUSABLE, main

CHECKS = {one.name: one for one in discover()}


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    printed = squeezed(capsys.readouterr().out)
    check = CHECKS[name]
    assert printed.startswith(squeezed(check.title))
    for part in ("What it finds.", "When it is wrong.", "What to do."):
        assert part in printed
    for code, meaning in check.codes.items():
        assert f"{code} {squeezed(meaning)}" in printed


def test_a_code_is_explained_by_its_check_with_its_meaning_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = CHECKS["token-collapse"]
    assert main(["explain", "token-collapse.single-token"]) == 0
    printed = capsys.readouterr().out
    meaning = check.codes["token-collapse.single-token"]
    assert f"token-collapse.single-token: {meaning}" in printed
    assert printed.index(meaning) < printed.index("What it finds.")


@pytest.mark.parametrize("name", load_causes().causes)
def test_a_cause_is_explained_with_both_sides_and_the_remedy(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 0
    printed = capsys.readouterr().out
    cause = load_causes().causes[name]
    assert printed.startswith(cause.title)
    assert squeezed(cause.explanation) in squeezed(printed)
    assert squeezed(cause.remedy) in squeezed(printed)
    for code, weight in cause.weights.items():
        assert f"{weight:+5.1f}  {code}" in printed


def test_an_unknown_name_gets_close_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "learning-rate-to-high"]) == EXIT_UNUSABLE
    assert "did you mean learning-rate-too-high" in capsys.readouterr().err


def test_a_name_like_nothing_is_sent_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "zzzzzzzz"]) == EXIT_UNUSABLE
    assert "`mlxdoctor checks` lists the codes" in capsys.readouterr().err
