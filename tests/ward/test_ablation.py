"""What decides: parts left out of a handful of outcomes, and what is noticed without them."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase

import pytest

from fixtures.lab import ablation
from fixtures.lab.ablation import (
    Case,
    Effect,
    effects,
    ignorance,
    is_right,
    needed,
    reasons,
    section,
)
from fixtures.lab.harness import REPORTS, Share
from mlxdoctor.causes import parse_causes
from mlxdoctor.check import discover
from mlxdoctor.finding import Finding, Outcome, Seen, Severity, Status
from mlxdoctor.verdict import Verdict


def knowledge(tiers: Mapping[str, float], **signs: str) -> str:
    """The text of a file with these tiers, and of each cause its lines on signs."""
    stated = "\n".join(f"{name} = {value}" for name, value in tiers.items())
    causes = (
        f'[causes.{name}]\ntitle = "T"\nsummary = "s"\nexplanation = "e"\nremedy = "r"\n'
        f"prior = 0.0\n{lines}\n"
        for name, lines in signs.items()
    )
    return "\n".join((f"[tiers]\n{stated}\n", *causes))


TIERS = {"proof": 4.0, "strong": 2.5, "hint": 1.0, "against": -5.0}
KNOWLEDGE = parse_causes(
    knowledge(
        TIERS,
        first='proof = ["one-check.sign"]\nruled_out_by = ["one-check.sign"]',
        second="""strong = ["other-check.sign"]
hint = ["one-check.idle"]
ruled_out_by = ["other-check.sign"]""",
    )
)


def outcome(check: str, *severities: Severity, learned: bool = False) -> Outcome:
    findings = tuple(Finding(f"{check}.sign", one, "It is so.") for one in severities)
    seen = (Seen("The loss fell.", learned=True),) if learned else ()
    status = Status.FOUND if findings else Status.PASSED
    return Outcome(check, status, findings=findings, seen=seen)


ERROR, WARNING = Severity.ERROR, Severity.WARNING
LEARNED = outcome("loss", learned=True)
CASES = [
    # The second cause is seen as well, and comes after the first.
    Case("both", (outcome("one-check", ERROR), outcome("other-check", ERROR)), cause="first"),
    Case("alone", (outcome("one-check", ERROR), outcome("other-check")), cause="first"),
    Case("told", (outcome("one-check", ERROR),), codes=frozenset({"one-check.sign"})),
    Case("missed", (outcome("one-check"), outcome("other-check"), LEARNED), cause="second"),
    Case("sound", (outcome("one-check"), outcome("other-check"), LEARNED), sound=Verdict.HEALTHY),
    Case(
        "disturbed",
        (outcome("one-check"), outcome("other-check", WARNING), LEARNED),
        sound=Verdict.SUSPECT,
    ),
]


def by_part(kind: str) -> dict[str, Effect]:
    return {one.part: one for one in effects(CASES, KNOWLEDGE, kind)}


def test_what_comes_out_right() -> None:
    right = {case.name: is_right(case, case.outcomes, KNOWLEDGE) for case in CASES}
    assert right == {
        **dict.fromkeys(("both", "alone", "told", "sound"), True),
        **dict.fromkeys(("missed", "disturbed"), False),
    }


def test_a_check_decides_what_is_wrong_without_it_and_disturbs_what_is_right() -> None:
    found = by_part("check")
    assert found["one-check"].decides == ("both", "alone", "told", "sound")
    assert found["other-check"].decides == ("sound",)
    assert found["other-check"].disturbs == ("disturbed",)
    # That something was learned is what a sound run is healthy by.
    assert found["loss"].decides == ("sound",)


def test_a_sign_that_is_never_found_decides_by_ruling_out() -> None:
    found = by_part("sign")
    assert found["one-check.sign"].decides == ("both", "alone", "told", "sound")
    assert found["other-check.sign"].disturbs == ("disturbed",)
    assert found["one-check.idle"] == Effect("one-check.idle", (), ())


def test_an_entry_of_a_cause_is_left_out_by_itself() -> None:
    found = by_part("entry")
    assert found["first: one-check.sign"].decides == ("both", "alone")
    assert found["second: other-check.sign"].disturbs == ("disturbed",)
    assert found["second: one-check.idle"].decides == ()


def test_without_the_check_that_decides_some_faults_are_still_noticed() -> None:
    found = effects(CASES, KNOWLEDGE, "check")
    shares = ignorance(CASES, found, KNOWLEDGE)
    assert shares["one-check"] == Share(3, 3)
    assert shares["other-check"] == Share(0, 0)
    text = section("Every check", found, shares)
    assert "| `one-check` | 4 | both, alone, told and 1 more |  | 100.0% (3/3;" in text
    assert "without the check that decides: 100.0% (3/3;" in text
    assert "0 of 3 decide nothing: none." in text


def test_of_two_signs_that_tell_the_same_the_second_decides() -> None:
    two = Outcome(
        "one-check",
        Status.FOUND,
        findings=tuple(Finding(f"one-check.{n}", ERROR, "It is so.") for n in ("sign", "idle")),
    )
    case = Case("twice", (two,), cause="second")
    causes = parse_causes(knowledge(TIERS, second='proof = ["one-check.sign", "one-check.idle"]'))
    assert [one.decides for one in effects([case], causes, "sign")] == [(), ()]
    assert needed([case], causes) == {"one-check.sign": ("twice",)}


def test_where_no_outcomes_are_kept_it_says_what_a_new_check_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ablation, "kept_cases", lambda evidence: ())
    monkeypatch.setattr("sys.argv", ["ablation"])
    assert ablation.main() == 1
    assert "give a reason for its codes in fixtures/lab/stays.toml" in capsys.readouterr().err


def test_a_sign_decides_a_case_or_stays_for_a_reason() -> None:
    deciding = json.loads((REPORTS / "ablation.json").read_text())
    patterns = [pattern for some in reasons().values() for pattern in some]
    declared = [code for check in discover() for code in check.symptoms]
    unexplained = [
        code
        for code in declared
        if code not in deciding and not any(fnmatchcase(code, one) for one in patterns)
    ]
    assert not unexplained, "neither decides a case nor has a reason in fixtures/lab/stays.toml"
    gone = [one for one in patterns if not any(fnmatchcase(code, one) for code in declared)]
    assert not gone, "there is no such sign"
