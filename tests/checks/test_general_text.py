"""What training did to ordinary language, from losses made to order."""

from __future__ import annotations

import numpy as np
import pytest

from mlxdoctor.finding import Finding
from mlxdoctor.models.general_text import GENERAL_TEXTS, GeneralText
from mlxdoctor.run import Run
from tests.conftest import RUNS, check_called
from tests.given import findings, outcome

general_text = check_called("general-text")
VOCABULARY = 49_152


def text(rise: float, *, base: float = 3.6, spread: float = 0.3) -> GeneralText:
    noise = np.linspace(-spread, spread, 12)
    before = base + 3 * noise
    return GeneralText(
        (), tuple(before.tolist()), tuple((before + rise + noise).tolist()), VOCABULARY
    )


def found(one: GeneralText) -> dict[str, Finding]:
    return findings(general_text, one)


@pytest.mark.parametrize(
    ("rise", "code"),
    [(0.2, None), (1.4, None), (1.6, "worse"), (2.8, "worse"), (3.2, "lost"), (6.0, "lost")],
)
def test_how_far_the_loss_rose(rise: float, code: str | None) -> None:
    codes = found(text(rise))
    assert set(codes) == ({f"general-text.{code}"} if code else set())


def test_a_sound_run_says_what_was_seen() -> None:
    said = outcome(general_text, text(0.1))
    assert said.seen[0].measured["rise"] == pytest.approx(0.1)
    assert not said.seen[0].learned


def test_a_rise_of_a_few_texts_is_not_certain() -> None:
    assert found(text(2.0, spread=4.0)) == {}


def test_a_base_that_knows_no_such_text_cannot_lose_it() -> None:
    said = outcome(general_text, text(3.0, base=6.5))
    assert not said.findings
    assert "general-text.lost" in said.unsought


def test_losses_that_are_not_finite_decide_nothing() -> None:
    broken = GeneralText((), (3.0,) * 12, (float("nan"),) * 12, VOCABULARY)
    assert outcome(general_text, broken).status == "inconclusive"


def test_both_models_are_measured() -> None:
    measured = Run.discover([RUNS / "healthy-ordinary"]).get(GeneralText)
    assert measured is not None
    assert len(measured.base) == len(measured.tuned) == len(GENERAL_TEXTS)
    assert measured.base != measured.tuned
