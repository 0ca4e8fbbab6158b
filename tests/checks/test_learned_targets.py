"""What the adapter was trained to predict, from losses made to order and from real runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from mlxdoctor.evidence.supervision import Role
from mlxdoctor.finding import Finding
from mlxdoctor.models.losses import RowLosses, RowPass, TokenLosses
from tests.conftest import check_called
from tests.given import findings, outcome

learned_targets = check_called("learned-targets")


PROMPT, ANSWER = 5, 6
ROLES = np.array([Role.PROMPT] * PROMPT + [Role.ANSWER] * ANSWER + [Role.END], np.int8)


@dataclass(frozen=True)
class Model:
    """Mean losses of a made-up model, nats: by shift on the answer, and elsewhere."""

    identity: float = 6.0
    next: float = 3.0
    skip: float = 5.0
    previous: float = 7.0
    prompt: float = 2.0
    end_at_start: float = 9.0
    end_after_answer: float = 0.1
    greedy_at_start: int | None = 5
    greedy_after_answer: int | None = 11
    padding: Mapping[int, tuple[float, float]] = field(default_factory=lambda: {0: (9.0, 9.0)})

    def row(self, noise: float) -> RowPass:
        n = len(ROLES)

        def losses(shift: int, on_answer: float) -> np.ndarray:
            roles = ROLES[shift:]
            values = np.where(roles == Role.PROMPT, self.prompt, on_answer)
            return (values + noise).astype(np.float32)[: n - shift]

        return RowPass(
            shifted={
                -1: np.append(losses(0, self.previous), np.float32(9.0)),
                0: losses(0, self.identity),
                1: losses(1, self.next),
                2: losses(2, self.skip),
            },
            end_at_start=self.end_at_start + noise,
            end_after_answer=self.end_after_answer + noise,
            greedy_at_start=self.greedy_at_start,
            greedy_after_answer=self.greedy_after_answer,
            padding={
                pad_id: np.array([first, *[rest] * 5], np.float32)
                for pad_id, (first, rest) in self.padding.items()
            },
        )


BASE = Model()
SOUND = Model(next=0.5, identity=7.0, skip=6.0)


def made(
    tuned: Model | None,
    base: Model = BASE,
    rows: int = 16,
    split: str = "train",
    mask_prompt: bool = False,
) -> TokenLosses:
    tokens = np.arange(len(ROLES), dtype=np.int32)
    noise = np.linspace(0.0, 0.05, rows)
    return TokenLosses(
        sources=(),
        rows=tuple(
            RowLosses(split, i, tokens, ROLES, base.row(x), None if tuned is None else tuned.row(x))
            for i, x in enumerate(noise.tolist())
        ),
        vocab_size=768,
        end_token_ids=(11,),
        pad_ids=tuple(base.padding),
        mask_prompt=mask_prompt,
    )


def found(losses: TokenLosses) -> dict[str, Finding]:
    return {
        code.removeprefix("learned-targets."): one
        for code, one in findings(learned_targets, losses).items()
    }


def test_a_sound_run_passes() -> None:
    assert outcome(learned_targets, made(SOUND)).status == "passed"


def test_identity() -> None:
    codes = found(made(Model(identity=0.1, next=5.0, skip=7.0)))
    assert set(codes) == {"identity-learned", "answers-worse"}
    assert codes["identity-learned"].severity == "error"
    assert codes["identity-learned"].measured["rows_better_at_shift"] == 16


def test_a_model_that_repeats_its_input_repeats_padding_too() -> None:
    repeats = Model(identity=0.1, next=5.0, skip=7.0, padding={0: (0.1, 0.1)})
    assert "padding-learned" not in found(made(repeats))
    assert "end-token-repeated" not in found(replace(made(repeats), end_token_ids=(0,)))


def test_skip() -> None:
    codes = found(made(Model(identity=6.0, next=4.0, skip=0.5)))
    assert set(codes) == {"skip-learned", "answers-worse"}


def test_the_token_before_the_one_given() -> None:
    """Inputs and targets have changed places: the next token is lost, and what follows a row."""
    swapped = Model(identity=2.0, next=22.0, skip=20.0, previous=0.1, padding={0: (0.1, 0.1)})
    codes = found(replace(made(swapped), end_token_ids=(0,)))
    assert set(codes) == {"previous-learned", "answers-worse"}
    assert "the token before the one it was given" in codes["previous-learned"].message


def test_a_model_below_a_blind_guess_still_shows_its_padding() -> None:
    padded = Model(identity=7.0, next=6.0, skip=6.9, padding={0: (0.1, 0.1)})
    assert "end-token-repeated" in found(replace(made(padded), end_token_ids=(0,)))
    lost = Model(identity=7.0, next=6.9, skip=6.9, padding={0: (0.1, 0.1)})
    unsaid = outcome(learned_targets, replace(made(lost), end_token_ids=(0,)))
    assert [one.code for one in unsaid.findings] == ["learned-targets.answers-worse"]
    assert set(unsaid.unsought) == {
        "learned-targets.padding-learned",
        "learned-targets.end-token-repeated",
    }


@pytest.mark.parametrize(("identity", "hit"), [(1.4, True), (1.6, False)])
def test_the_shift_must_be_better_by_a_margin(identity: float, hit: bool) -> None:
    assert ("identity-learned" in found(made(Model(identity=identity, next=2.0)))) is hit


def test_a_model_that_guesses_one_token_is_equally_bad_at_every_shift() -> None:
    codes = found(made(Model(identity=5.0, next=5.0, skip=5.0)))
    assert set(codes) == {"answers-worse"}


@pytest.mark.parametrize(("loss", "hit"), [(3.2, True), (3.05, False)])
def test_answers_worse(loss: float, hit: bool) -> None:
    codes = found(made(replace(SOUND, next=loss)))
    assert ("answers-worse" in codes) is hit
    assert not hit or codes["answers-worse"].severity == "error"


def test_worse_on_held_out_rows_only() -> None:
    train, valid = made(SOUND), made(Model(next=4.0), split="valid")
    both = replace(train, rows=train.rows + valid.rows)
    codes = found(both)
    assert {code: one.severity for code, one in codes.items()} == {"held-out-worse": "warning"}


def test_more_padding_is_an_error_and_the_first_is_not_told() -> None:
    codes = found(made(replace(SOUND, padding={0: (0.1, 0.1)})))
    assert {code: one.severity for code, one in codes.items()} == {"padding-learned": "error"}
    assert not found(made(replace(SOUND, padding={0: (0.1, 5.5)})))


@pytest.mark.parametrize("place", ["greedy_at_start", "greedy_after_answer"])
def test_padding_in_place_of_the_answer_or_its_end_is_an_error(place: str) -> None:
    padded = replace(SOUND, **{place: 0})
    other = {"pad_ids": (9, 0)}
    assert found(replace(made(padded), **other))["padding-learned"].severity == "error"
    assert not found(replace(made(padded, replace(BASE, **{place: 0})), **other))
    assert not found(replace(made(padded), end_token_ids=(0,), **other))
    # mlx-lm trains one token of its own padding after every row.
    assert not found(made(padded))


@pytest.mark.parametrize(
    ("loss", "own", "code"),
    [
        (5.0, False, "padding-learned"),
        (5.3, False, None),
        (1.55, True, "padding-learned"),
        (1.65, True, None),
    ],
)
def test_padding_may_be_learned_a_little(loss: float, own: bool, code: str | None) -> None:
    """More so where it is the token of which mlx-lm trains one itself."""
    padded = replace(SOUND, padding={0: (8.0, loss)})
    codes = found(replace(made(padded), pad_ids=(0,) if own else (9, 0)))
    assert list(codes) == ([code] if code else [])


def test_end_token_after_end_token_is_no_other_padding() -> None:
    padded = replace(made(replace(SOUND, padding={0: (0.1, 0.1)})), end_token_ids=(0,))
    codes = found(padded)
    assert {code: one.severity for code, one in codes.items()} == {"end-token-repeated": "error"}


@pytest.mark.parametrize(("rows", "hit"), [(8, True), (7, False)])
def test_padding_must_follow_half_of_the_answers(rows: int, hit: bool) -> None:
    sound, padded = made(SOUND), made(replace(SOUND, greedy_after_answer=0))
    mixed = replace(sound, rows=padded.rows[:rows] + sound.rows[rows:], pad_ids=(9, 0))
    assert ("padding-learned" in found(mixed)) is hit


def test_a_base_model_that_expects_padding_did_not_learn_it() -> None:
    pads = {0: (0.1, 0.1)}
    assert not found(made(replace(SOUND, padding=pads), replace(BASE, padding=pads)))


@pytest.mark.parametrize(("loss", "hit"), [(2.4, True), (0.5, True), (0.3, False)])
def test_the_end_token_was_forgotten(loss: float, hit: bool) -> None:
    codes = found(made(replace(SOUND, end_after_answer=loss)))
    assert ("end-token-unlearned" in codes) is hit
    assert not hit or codes["end-token-unlearned"].severity == "error"


@pytest.mark.parametrize(
    ("train", "valid", "hit"), [(0.1, 0.7, True), (0.1, 0.5, False), (1.0, 1.7, False)]
)
def test_memorised_answers(train: float, valid: float, hit: bool) -> None:
    both = made(replace(SOUND, next=train))
    held_out = made(replace(SOUND, next=valid), split="valid")
    codes = found(replace(both, rows=both.rows + held_out.rows))
    assert ("memorised" in codes) is hit


def test_the_end_token_was_never_known() -> None:
    never = made(replace(SOUND, end_after_answer=5.0), replace(BASE, end_after_answer=5.0))
    assert found(never)["end-token-unlearned"].severity == "warning"


@pytest.mark.parametrize(("loss", "hit"), [(0.6, True), (0.7, False)])
def test_the_end_token_is_expected_at_once(loss: float, hit: bool) -> None:
    assert ("end-token-everywhere" in found(made(replace(SOUND, end_at_start=loss)))) is hit


def test_the_prompt_was_learned_although_masked() -> None:
    learned = replace(SOUND, prompt=0.2)
    assert found(made(learned, mask_prompt=True))["prompt-learned"].severity == "error"
    assert "prompt-learned" not in found(made(learned, mask_prompt=False))


@pytest.mark.parametrize(("prompt", "hit"), [(1.1, True), (1.25, False)])
def test_half_of_the_answers_improvement_is_too_much(prompt: float, hit: bool) -> None:
    # The answer loses 5/6 of its loss: from 2.0, the prompt may lose 5/12, to 1.17.
    codes = found(made(replace(SOUND, prompt=prompt), mask_prompt=True))
    assert ("prompt-learned" in codes) is hit


@pytest.mark.parametrize(("loss", "hit"), [(3.1, True), (2.9, False)])
def test_the_prompt_became_worse(loss: float, hit: bool) -> None:
    codes = found(made(replace(SOUND, prompt=loss)))
    assert ("prompt-worse" in codes) is hit
    assert not hit or codes["prompt-worse"].severity == "error"
    masked = found(made(replace(SOUND, prompt=3.1), mask_prompt=True))
    assert masked["prompt-worse"].severity == "info"


def test_nothing_learned() -> None:
    assert found(made(BASE))["nothing-learned"].severity == "error"
    assert "nothing-learned" not in found(made(replace(BASE, next=2.9)))
    known = replace(BASE, next=0.1)
    assert "nothing-learned" not in found(made(known, known))


def test_losses_that_are_not_finite() -> None:
    codes = found(made(Model(next=float("nan"))))
    assert set(codes) == {"not-finite"}
    assert codes["not-finite"].measured["not_finite"] == 16


def test_a_broken_base_model() -> None:
    assert found(made(SOUND, replace(BASE, next=8.2)))["base-broken"].severity == "error"
    # A small sound base may be sure of other words, and then learn these.
    assert found(made(SOUND, replace(BASE, next=6.7)))["base-broken"].severity == "info"
    barely = replace(BASE, next=3.5)
    assert found(made(barely, replace(BASE, next=6.7)))["base-broken"].severity == "warning"
    assert "base-broken" not in found(made(SOUND, replace(BASE, next=6.5)))
    assert "base-broken" in found(made(SOUND, replace(BASE, next=float("inf"))))


def test_too_few_rows_decide_nothing() -> None:
    assert outcome(learned_targets, made(SOUND, rows=7)).status == "inconclusive"
    assert outcome(learned_targets).status == "skipped"


def test_a_refused_adapter_still_shows_the_base_model() -> None:
    refused = replace(made(None, replace(BASE, next=7.0)), load_failure="ValueError: names")
    said = outcome(learned_targets, refused)
    assert [one.code for one in said.findings] == ["learned-targets.base-broken"]
    assert outcome(learned_targets, replace(made(None), load_failure="x")).status == "inconclusive"
