"""The measured weights: their arithmetic, and what stands beside the weights in causes.toml."""

from importlib.resources import files

import pytest

from fixtures.lab.weights.beside import Line, lines_of, written
from fixtures.lab.weights.calibration import Scored, fitted, quality
from fixtures.lab.weights.cases import Case
from fixtures.lab.weights.likelihood import ratio, ratios
from fixtures.lab.weights.ruled_out import Wrongly, measured, rules_of
from fixtures.lab.weights.ruled_out import written as with_shares
from mlxdoctor.causes import Calibration, load_causes, parse_causes
from mlxdoctor.diagnosis import probabilities
from mlxdoctor.finding import Finding, Outcome, Severity, Status

SHIPPED = files("mlxdoctor").joinpath("causes.toml").read_text("utf-8")


def test_every_weight_is_found_in_the_file_with_its_sign() -> None:
    # A code may speak for a cause, and against it where it is absent.
    of_file = {
        (one.kind == "absent", one.cause, one.code): one.weight for _, one in lines_of(SHIPPED)
    }
    causes = load_causes().causes.values()
    stated = {(False, cause.id, code): w for cause in causes for code, w in cause.weights.items()}
    stated |= {(True, cause.id, code): w for cause in causes for code, w in cause.absent.items()}
    assert of_file == stated


def test_where_the_measurement_is_not_followed_the_file_says_why() -> None:
    apart = [one for _, one in lines_of(SHIPPED) if one.is_apart and not one.kept]
    assert not apart


def test_a_finding_of_that_cause_alone_speaks_for_it() -> None:
    for_it = ratio((18, 20), (2, 400))
    assert 3.5 < for_it.value < 5.5
    assert for_it.low < for_it.value < for_it.high
    assert ratio((0, 20), (200, 400)).value < -2


def test_few_runs_say_little() -> None:
    assert 0 < ratio((1, 1), (0, 2)).value < ratio((10, 10), (0, 20)).value


def _case(cause: str | None, *codes: str, looked: bool = True) -> Case:
    found = tuple(Finding(code, Severity.ERROR, "said.") for code in codes)
    status = Status.FOUND if found else Status.PASSED if looked else Status.SKIPPED
    return Case(
        "run", "dev", "base", "static", cause, (Outcome("a-check", status, findings=found),)
    )


def test_runs_in_which_nobody_looked_do_not_count() -> None:
    cases = [
        *(_case("it", "a-check.sign") for _ in range(6)),
        *(_case("it", looked=False) for _ in range(5)),
        *(_case(None) for _ in range(10)),
    ]
    found = ratios(cases, {"it": ["a-check.sign"]})["it", "a-check.sign"]
    assert found.with_cause == (6, 6)
    assert found.others == (0, 10)
    assert found.n == 6


def test_the_comment_is_written_anew_and_its_reason_stays() -> None:
    text = '[causes.it]\nprior = 0.0\n\n[causes.it.for]\n"a.b" = 1.0  # old; kept: for a reason\n'
    found = ratio((18, 20), (2, 400))
    again = written(text, {("it", "a.b"): found})
    [(_, line)] = lines_of(again)
    assert line == Line("it", "for", "a.b", 1.0, f"{found}; kept: for a reason")
    assert line.is_apart
    assert line.kept == "for a reason"
    assert written(again, {("it", "a.b"): found}) == again


def test_probabilities_leave_room_for_none_of_them() -> None:
    shares = probabilities([4.0, 1.0], Calibration(1.0, 0.0))
    assert shares[0] > shares[1]
    assert sum(shares) < 1
    assert probabilities([4.0], Calibration(1.0, 4.0)) == [pytest.approx(0.5)]


def test_the_fit_finds_how_far_scores_can_be_trusted() -> None:
    # Ahead by 2, right in three of four.
    runs = [Scored("a", "dev", "static", (3.0, 1.0), 0 if at % 4 else 1) for at in range(800)]
    found = quality(runs, fitted(runs))
    assert found.stated == pytest.approx(0.75, abs=0.03)
    assert found.error < 0.03


def test_every_rule_is_found_in_the_file() -> None:
    stated = [
        (cause.id, codes) for cause in load_causes().causes.values() for codes in cause.ruled_out_by
    ]
    assert [rule for _, rule in rules_of(SHIPPED)] == stated


RULES = """[causes.it]
title = "It"
summary = "it"
explanation = "it"
remedy = "it"
prior = 0.0
ruled_out_by = [
    "a-check.sign",  # wrongly 9 of 9 static
    ["a-check.sign", "a-check.other"],
    [
        "b-check.sign",
    ],
]

[causes.it.for]
"a-check.other" = 1.0
"""


def test_a_rule_is_wrong_where_a_run_with_the_cause_shows_nothing_of_it() -> None:
    cases = [
        _case("it", "a-check.sign"),
        _case("it", "a-check.other"),
        *(_case("it") for _ in range(2)),
        *(_case("it", looked=False) for _ in range(5)),
        *(_case(None) for _ in range(10)),
    ]
    shares = measured(cases, parse_causes(RULES))
    # The second run shows something else of it: not all that was looked for is wrong.
    assert shares["it", ("a-check.sign",)] == (Wrongly("static", 2, 4),)
    assert shares["it", ("a-check.sign", "a-check.other")] == (Wrongly("static", 2, 4),)
    text = with_shares(RULES, shares)
    assert '    "a-check.sign",  # wrongly 2 of 4 static\n' in text
    assert '"a-check.other"],  # wrongly 2 of 4 static\n    [\n' in text
    assert '        "b-check.sign",\n    ],\n]' in text
    assert with_shares(text, shares) == text
