import pytest

from mlxdoctor.models.scoring import ItemScore, Scores
from tests.conftest import check_called
from tests.given import findings, outcome

score = check_called("score")


def scores(base: list[float | None], tuned: list[float], unscored: int = 0) -> Scores:
    items = tuple(
        ItemScore(f"p{i}", b, t) for i, (b, t) in enumerate(zip(base, tuned, strict=True))
    )
    return Scores((), "voice.py:voice", items, (unscored, "ValueError: x" if unscored else ""))


def test_a_lower_score_on_every_prompt() -> None:
    found = findings(score, scores([0.8] * 8, [0.0] * 7 + [0.7]))
    finding = found["score.worse-than-base"]
    assert finding.severity == "error"
    assert finding.measured["base_score"] == pytest.approx(0.8)
    assert finding.measured["p_value"] == pytest.approx(2 / 2**8)


def test_a_higher_score_and_noise_pass() -> None:
    assert outcome(score, scores([0.0] * 8, [0.8] * 8)).status == "passed"
    noise = outcome(score, scores([0.5] * 8, [0.4, 0.6] * 4))
    assert noise.status == "passed"
    assert [one.learned for one in noise.seen] == [False]


def test_what_decides_nothing() -> None:
    (same,) = findings(score, scores([0.0] * 8, [0.0] * 8)).values()
    assert (same.code, same.severity) == ("score.always-the-same", "warning")
    assert outcome(score, scores([0.8] * 7, [0.0] * 7)).status == "inconclusive"
    assert outcome(score, scores([None] * 9, [0.0] * 9)).status == "inconclusive"


def test_answers_without_a_score_are_counted() -> None:
    finding = findings(score, scores([0.0] * 8, [0.8] * 8, 2))["score.unscored-answers"]
    assert (finding.severity, finding.measured["unscored"]) == ("warning", 2)
