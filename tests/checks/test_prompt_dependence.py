"""Whether answers depend on their prompts, from losses made to order."""

from dataclasses import dataclass

import numpy as np
import pytest

from mlxdoctor.finding import Finding
from mlxdoctor.models.prompt_gains import Asked, PromptGains
from tests.conftest import check_called
from tests.given import findings, outcome
from tests.measured_rows import Losses, measured_rows

prompt_dependence = check_called("prompt-dependence")


@dataclass(frozen=True)
class Worth:
    """What prompts are worth to a made-up model, and its loss after the right one, nats."""

    gain: float
    own: float = 2.0
    spread: float = 0.4


def asked(base: Worth, tuned: Worth | None, noise: float) -> Asked:
    """One answer after its own prompt and after another's, as both models find it."""
    own, other = (
        measured_rows(*(one and Losses(answer=loss(one)) for one in (base, tuned)), count=1)
        for loss in (lambda one: one.own, lambda one: one.own + one.gain + noise * one.spread)
    )
    return own[0], other[0]


def gains(
    train: tuple[Worth, Worth | None] | None,
    valid: tuple[Worth, Worth | None] | None,
    *,
    rows: int = 48,
    test: tuple[Worth, Worth | None] | None = None,
) -> PromptGains:
    """Rows of each split, as what prompts are worth to base and tuned model."""
    splits = {"train": train, "valid": valid, "test": test}
    made: dict[str, tuple[Asked, ...]] = {}
    for seed, (name, models) in enumerate(splits.items()):
        if models is None:
            continue
        noise = np.random.default_rng(seed).standard_normal(rows)
        noise = (noise - noise.mean()) / noise.std()
        made[name] = tuple(asked(*models, one) for one in noise.tolist())
    return PromptGains(
        (),
        {name: len(one) for name, one in made.items()},
        lambda name, count: made[name][:count],
    )


def found(one: PromptGains) -> dict[str, Finding]:
    return {
        code.removeprefix("prompt-dependence."): finding
        for code, finding in findings(prompt_dependence, one).items()
    }


SOUND = (Worth(0.34), Worth(0.34, own=1.0))
SHUFFLED = (Worth(0.02), Worth(0.02, own=1.5))


def test_a_sound_run_passes_and_says_what_its_prompts_are_worth() -> None:
    said = outcome(prompt_dependence, gains(SOUND, SOUND))
    assert said.status == "passed"
    assert not said.unsought
    assert said.seen[0].measured["valid_tuned_gain"] == pytest.approx(0.34)
    assert "0.34 nats a token to the base model and 0.34 to the tuned one" in said.seen[0].message


@pytest.mark.parametrize(
    ("train", "valid", "expected"),
    [
        (SHUFFLED, (Worth(0.34), Worth(0.05, own=1.5)), {"unrelated-answers": "error"}),
        # The base alone tells before training.
        ((Worth(0.02), None), (Worth(0.34), None), {"unrelated-answers": "error"}),
        ((Worth(0.34), None), (Worth(0.34), None), {}),
        # A part of the answers elsewhere, and most of them.
        ((Worth(0.8), None), (Worth(1.5), None), {"unrelated-answers": "warning"}),
        # The base knew the rows held out; of what was learned hardly a loss is left.
        ((Worth(0.2), Worth(1.4, own=0.1)), (Worth(4.7), Worth(1.6, own=0.2)), {}),
        ((Worth(0.6), None), (Worth(1.5), None), {"unrelated-answers": "error"}),
        # A little less is no sign.
        ((Worth(0.25, spread=0.1), None), (Worth(0.34, spread=0.1), None), {}),
        # Rows that only the tuned model understands are no fault.
        ((Worth(0.0), Worth(0.9, own=0.5)), (Worth(0.34), Worth(0.9, own=0.5)), {}),
        # Prompts that mattered a little before were forgotten: the rows are not to blame.
        ((Worth(0.18), Worth(0.0, own=0.5)), (Worth(0.18), Worth(0.0, own=0.5)), {}),
        ((Worth(-0.1), Worth(2.0, own=0.5)), (Worth(-0.1), Worth(2.0, own=0.5)), {}),
        # All splits were shuffled alike: what was learned has nothing to do with the prompts.
        ((Worth(0.1), Worth(0.05, 0.9, 0.07)), (Worth(0.0), None), {"prompts-unused": "warning"}),
        ((Worth(0.0), Worth(0.13, 0.9, 0.07)), (Worth(0.0), None), {}),
        # A collapsed model has learned nothing at all.
        ((Worth(0.1), Worth(0.0, 1.9, 0.07)), (Worth(0.0), None), {}),
    ],
)
def test_answers_that_are_not_those_to_their_prompts(
    train: tuple[Worth, Worth | None],
    valid: tuple[Worth, Worth | None],
    expected: dict[str, str],
) -> None:
    codes = found(gains(train, valid))
    assert {code: finding.severity for code, finding in codes.items()} == expected


def test_the_message_says_what_prompts_are_worth() -> None:
    finding = found(gains((Worth(0.6), None), (Worth(1.5), None)))["unrelated-answers"]
    assert finding.measured["train_base_gain"] == pytest.approx(0.6)
    assert "many of the training answers do not belong to their prompts" in finding.message
    # Without validation rows the test rows are compared.
    codes = found(gains(SHUFFLED, None, test=SOUND))
    assert "On the test rows it is +0.34 higher" in codes["unrelated-answers"].message


def test_what_decides_nothing() -> None:
    # Where prompts matter little to the base nothing is said of the rows.
    style = (Worth(0.02), None)
    said = outcome(prompt_dependence, gains(style, style))
    assert said.status == "passed"
    assert "prompt-dependence.unrelated-answers" in said.unsought
    assert outcome(prompt_dependence, gains(SHUFFLED, SOUND, rows=6)).status == "inconclusive"
