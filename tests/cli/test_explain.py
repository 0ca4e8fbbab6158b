import json

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.check import discover
from tests.conftest import Call

CHECKS = {one.name: one for one in discover()}


def squeezed(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_explained(name: str, call: Call) -> None:
    code, out, _ = call("explain", name)
    assert code == 0
    printed = squeezed(out)
    check = CHECKS[name]
    assert printed.startswith(squeezed(check.title))
    finding = ("What it finds.", "Why it matters.", "How it is measured.")
    for part in (*finding, "When it is wrong.", "What to do."):
        assert part in printed
    for code, symptom in check.symptoms.items():
        assert f"{code} {squeezed(symptom.meaning)}" in printed


def test_a_code_is_explained_by_its_check_with_its_meaning_first(call: Call) -> None:
    check = CHECKS["token-collapse"]
    printed = call("explain", "token-collapse.single-token")[1]
    meaning = check.symptoms["token-collapse.single-token"].meaning
    assert f"token-collapse.single-token: {meaning}" in printed
    assert printed.index(meaning) < printed.index("What it finds.")


@pytest.mark.parametrize("name", load_causes().causes)
def test_a_cause_is_explained_with_both_sides_and_the_remedy(name: str, call: Call) -> None:
    code, printed, _ = call("explain", name)
    assert code == 0
    cause = load_causes().causes[name]
    assert printed.startswith(cause.title)
    assert squeezed(cause.explanation) in squeezed(printed)
    assert squeezed(cause.remedy) in squeezed(printed)
    for code, weight in cause.weights.items():
        assert f"{weight:+5.1f}  {code}" in printed


def test_json_lists_every_code_of_every_check(call: Call) -> None:
    code, out, _ = call("checks", "--stdout", "json")
    assert code == 0
    listed = json.loads(out)
    symptoms = {code: each for one in discover() for code, each in one.symptoms.items()}
    assert {row["code"]: row["meaning"] for row in listed} == {
        code: symptom.meaning for code, symptom in symptoms.items()
    }
    assert {row["cost"] for row in listed} == {"instant", "forward"}


def test_the_table_has_a_row_for_every_code_and_fits_the_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, printed, _ = call("checks")
    assert code == 0
    assert all(code in printed for check in discover() for code in check.symptoms)
    assert max(map(len, printed.splitlines())) <= 100
