"""What the adapter was trained to predict, from losses made to order and from real runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.supervision import Role
from mlxdoctor.models.losses import RowLosses, TokenLosses
from tests.checks.data_evidence import chat, rows_of, write_data
from tests.conftest import check_called
from tests.given import outcome, severities
from tests.measured_rows import ROLES, TOKENS, Losses, measured_rows

learned_targets = check_called("learned-targets")


def model(*, identity: float = 6.0, next: float = 3.0, skip: float = 5.0, **others: Any) -> Losses:
    """A made-up model by its losses on the answer at each shift, nats, and elsewhere."""
    usual = {"end_after_answer": 0.1, "pads": {0: (9.0, 9.0)}}
    usual |= {"greedy_at_start": 5, "greedy_after_answer": 11}
    return Losses(2.0, next, next, next, at_shift={0: identity, 2: skip}, **usual | others)


BASE = model()
SOUND = model(next=0.5, identity=7.0, skip=6.0)
REPEATING = model(identity=0.1, next=5.0, skip=7.0)
#: Worse than a guess, 6.64 nats, on all of a row.
LOST = replace(BASE, prompt=8.2, answer=8.2)


def made(
    tuned: Losses | None,
    base: Losses = BASE,
    rows: int = 16,
    split: str = "train",
    mask_prompt: bool = False,
) -> TokenLosses:
    return TokenLosses(
        sources=(),
        rows=measured_rows(base, tuned, rows, split=split, spread=0.05),
        vocab_size=768,
        end_token_ids=(11,),
        pad_ids=tuple(base.pads),
        mask_prompt=mask_prompt,
    )


#: What is said where nothing is wrong.
IN_ORDER = {"end-token-learned", "padding-unlearned"}


def codes_of(losses: TokenLosses) -> dict[str, str]:
    """What is wrong: severity by code."""
    found = severities(outcome(learned_targets, losses))
    return {code: severity for code, severity in found.items() if code not in IN_ORDER}


def test_what_is_in_order_is_said() -> None:
    found = severities(outcome(learned_targets, made(SOUND)))
    assert found == dict.fromkeys(IN_ORDER, "info")


PADDED, NEARLY = {0: (0.06, 0.06)}, {0: (0.11, 0.11)}
SHIFTED = {"wrong-shift-learned", "answers-worse"}


@pytest.mark.parametrize(
    ("tuned", "expected"),
    [
        (REPEATING, SHIFTED),
        (model(identity=6.0, next=4.0, skip=0.5), SHIFTED),
        # The shift must be better by a margin.
        (model(identity=1.4, next=2.0), {"wrong-shift-learned"}),
        (model(identity=1.6, next=2.0), {}),
        # A model that guesses one token is equally bad at every shift.
        (model(identity=5.0, next=5.0, skip=5.0), {"answers-worse"}),
        # A model that repeats its input repeats padding, too.
        (replace(REPEATING, pads=PADDED), SHIFTED),
        (replace(SOUND, answer=3.2), {"answers-worse"}),
        (replace(SOUND, answer=3.05), {}),
        # The first padding is not told.
        (replace(SOUND, pads={0: (0.1, 5.5)}), {}),
        # The end token was forgotten.
        (replace(SOUND, end_after_answer=2.4), {"end-token-unlearned"}),
        (replace(SOUND, end_after_answer=0.5), {"end-token-unlearned"}),
        (replace(SOUND, end_after_answer=0.3), {}),
        (replace(SOUND, prompt=3.1, answer=3.0), {}),
        (replace(SOUND, prompt=0.2), {}),
        (BASE, {"nothing-learned"}),
        (replace(BASE, answer=2.9), {}),
        (model(next=float("nan")), {"not-finite"}),
    ],
)
def test_what_was_learned(tuned: Losses, expected: set[str]) -> None:
    assert codes_of(made(tuned)) == dict.fromkeys(expected, "error")


@pytest.mark.parametrize(
    ("train", "valid", "expected"),
    [
        (SOUND, model(next=4.0), {"memorised": "warning"}),
        (replace(SOUND, answer=0.1), replace(SOUND, answer=0.7), {"memorised": "warning"}),
        (replace(SOUND, answer=0.1), replace(SOUND, answer=0.5), {}),
        (replace(SOUND, answer=1.0), replace(SOUND, answer=1.7), {}),
    ],
)
def test_held_out_rows(train: Losses, valid: Losses, expected: dict[str, str]) -> None:
    trained, held_out = made(train), made(valid, split="valid")
    assert codes_of(replace(trained, rows=trained.rows + held_out.rows)) == expected


#: Another id than mlx-lm's own is tried as padding; the padding is an end token.
OTHER, END = {"pad_ids": (9, 0)}, {"end_token_ids": (0,)}
LEARNED, MAYBE = {"padding-learned": "error"}, {"padding-learned": "warning"}
REPEATED, WORSE = {"end-token-repeated": "warning"}, {"answers-worse": "error"}
FIRST, OVER = {"greedy_at_start": 0}, {"greedy_after_answer": 0}
MASKED = {"mask_prompt": True}


@pytest.mark.parametrize(
    ("tuned", "base", "of_run", "expected"),
    [
        # Padding is chosen in place of the answer or of its end.
        (replace(SOUND, **FIRST), BASE, OTHER, LEARNED),
        (replace(SOUND, **OVER), BASE, OTHER, LEARNED),
        (replace(SOUND, **OVER), replace(BASE, **OVER), OTHER, {}),
        (replace(SOUND, **OVER), BASE, OTHER | END, {}),
        # mlx-lm trains one token of its own padding after every row.
        (replace(SOUND, **OVER), BASE, {}, {}),
        # It may be learned a little; more so where it is that token.
        (replace(SOUND, pads={0: (8.0, 5.0)}), BASE, OTHER, LEARNED),
        (replace(SOUND, pads={0: (8.0, 5.3)}), BASE, OTHER, {}),
        (replace(SOUND, pads={0: (8.0, 1.55)}), BASE, {}, MAYBE),
        (replace(SOUND, pads=PADDED), BASE, {}, MAYBE),
        # One that nothing is padded with by mlx-lm.
        (replace(SOUND, pads=PADDED), BASE, OTHER | END, {"end-token-repeated": "error"}),
        (replace(SOUND, pads={0: (8.0, 1.65)}), BASE, {}, {}),
        # End token after end token is no other padding.
        (replace(SOUND, pads=PADDED), BASE, END, REPEATED),
        (replace(SOUND, pads=NEARLY), BASE, END, {}),
        # A model below a blind guess still shows it, one that repeats what it is given does not.
        (model(identity=7.0, next=6.0, skip=6.9, pads=PADDED), BASE, END, REPEATED | WORSE),
        (replace(REPEATING, pads=PADDED), BASE, END, dict.fromkeys(SHIFTED, "error")),
        (replace(SOUND, prompt=0.2), BASE, MASKED, {"prompt-learned": "error"}),
        # The answer loses 5/6 of its loss: from 2.0, the prompt may lose 5/12, to 1.17.
        (replace(SOUND, prompt=1.1), BASE, MASKED, {"prompt-learned": "error"}),
        (replace(SOUND, prompt=1.25), BASE, MASKED, {}),
        (replace(SOUND, prompt=3.1), BASE, MASKED, {}),
        # A base model that expects padding did not learn it.
        (replace(SOUND, pads=PADDED), replace(BASE, pads=PADDED), {}, {}),
        # The end token was never known.
        (
            replace(SOUND, end_after_answer=5.0),
            replace(BASE, end_after_answer=5.0),
            {},
            {"end-token-unlearned": "warning"},
        ),
        # What the base knows already is not there to be learned.
        (replace(BASE, answer=0.1), replace(BASE, answer=0.1), {}, {}),
        # Whatever it knew, it learned these.
        (SOUND, LOST, {}, {"unlike-the-base": "info"}),
        # A small sound base may be sure of other words, and then learn these.
        (SOUND, replace(BASE, answer=6.7), {}, {"unlike-the-base": "info"}),
        (SOUND, replace(BASE, answer=6.5), {}, {}),
    ],
)
def test_what_was_learned_of_padding_of_the_prompt_and_beyond_the_base(
    tuned: Losses, base: Losses, of_run: dict[str, Any], expected: dict[str, str]
) -> None:
    assert codes_of(replace(made(tuned, base), **of_run)) == expected


def test_padding_of_a_model_above_a_blind_guess_is_not_judged() -> None:
    lost = model(identity=7.0, next=6.9, skip=6.9, pads=PADDED)
    found = outcome(learned_targets, replace(made(lost), **END))
    assert "learned-targets.padding-learned" not in severities(found)
    assert set(found.unsought) == {
        "learned-targets.padding-learned",
        "learned-targets.end-token-repeated",
    }


@pytest.mark.parametrize(("rows", "expected"), [(8, LEARNED), (7, {})])
def test_padding_must_follow_half_of_the_answers(rows: int, expected: dict[str, str]) -> None:
    sound, padded = made(SOUND), made(replace(SOUND, **OVER))
    mixed = replace(sound, rows=padded.rows[:rows] + sound.rows[rows:], **OTHER)
    assert codes_of(mixed) == expected


def test_too_few_rows_decide_nothing() -> None:
    assert outcome(learned_targets, made(SOUND, rows=7)).status == "inconclusive"


def test_a_refused_adapter_shows_nothing() -> None:
    assert outcome(learned_targets, replace(made(None), load_failure="x")).status == "inconclusive"


def _answering(rows: tuple[RowLosses, ...]) -> tuple[RowLosses, ...]:
    """The rows, with two answers by turns."""
    other = np.where(ROLES == Role.ANSWER, TOKENS + 50, TOKENS)
    return tuple(replace(row, tokens=(TOKENS, other)[row.index % 2]) for row in rows)


@pytest.mark.parametrize(
    ("answer", "expected"),
    # Two answers of six tokens that part at the first: a guess has ln 2 there, and nothing later.
    [(0.9, {"only-guessed": "error"}), (0.69, {"only-guessed": "warning"}), (0.6, {}), (0.1, {})],
)
def test_answers_that_are_only_guessed(
    tmp_path: Path, answer: float, expected: dict[str, str]
) -> None:
    rows = measured_rows(BASE, model(next=answer), 16, split="valid", spread=0.02)
    losses = replace(made(SOUND), rows=_answering(rows))
    trained = rows_of(write_data(tmp_path, train=[chat("Which?", "This.")] * 8))
    supervised = replace(
        trained,
        rows=tuple(
            replace(trained.rows[0], tokens=row.tokens, roles=ROLES, length=len(TOKENS))
            for row in losses.rows
        ),
    )
    found = severities(outcome(learned_targets, losses, supervised))
    assert {code: one for code, one in found.items() if code == "only-guessed"} == expected
    few = replace(supervised, rows=supervised.rows[:15])
    assert "only-guessed" not in severities(outcome(learned_targets, losses, few))
