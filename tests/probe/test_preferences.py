"""Losses of pairs and of policies: sound ones pass, each fault is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx import nn

from fixtures.trainers.common import encoded, load_base, padded
from mlxdoctor import probe
from mlxdoctor.finding import Severity
from mlxdoctor.safety.errors import InputError
from tests.probe.conftest import codes, probed

REJECTED = ("I do not know.", "The answer is blue.")
REWARDS = (1.0, -1.0, 0.5, -0.5)
Loss = Callable[..., Any]


@pytest.fixture(scope="module")
def reference() -> Any:
    return load_base()[0]


def rows_of(pairs: list[tuple[list[int], list[int]]]) -> tuple[mx.array, mx.array]:
    """Tokens, and a mask of the answers."""
    tokens = padded([prompt + answer for prompt, answer in pairs], 0)
    mask = padded([[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs], 0)
    return tokens, mask.astype(mx.float32)


@pytest.fixture(scope="module")
def batch(base: tuple[Any, Any]) -> tuple[mx.array, ...]:
    """Chosen tokens, rejected tokens, and the masks of both."""
    tokenizer = base[1]
    good = encoded(tokenizer)
    bad = [
        (prompt, [*tokenizer.encode(REJECTED[at % 2], add_special_tokens=False), answer[-1]])
        for at, (prompt, answer) in enumerate(good)
    ]
    (chosen, chosen_mask), (rejected, rejected_mask) = rows_of(good), rows_of(bad)
    return chosen, rejected, chosen_mask, rejected_mask


def logps(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
    """The log probability of each position's token, 0 where it does not count."""
    losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    return -losses * mask[:, 1:]


def scores(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
    return logps(model, tokens, mask).sum(axis=-1)


def dpo(reference: Callable[[Any, mx.array, mx.array], mx.array], sign: float = 1.0) -> Loss:
    def loss(
        model: Any, chosen: mx.array, rejected: mx.array, up: mx.array, down: mx.array
    ) -> mx.array:
        margin = scores(model, chosen, up) - scores(model, rejected, down)
        margin = margin - reference(model, chosen, up) + reference(model, rejected, down)
        return -nn.log_sigmoid(sign * 0.1 * margin).mean()

    return loss


def orpo(
    model: Any, chosen: mx.array, rejected: mx.array, up: mx.array, down: mx.array
) -> mx.array:
    means = [
        scores(model, tokens, mask) / mask[:, 1:].sum(axis=-1)
        for tokens, mask in ((chosen, up), (rejected, down))
    ]
    odds = [one - mx.log1p(-mx.exp(one)) for one in means]
    ratio: mx.array = (-means[0] - 0.1 * nn.log_sigmoid(odds[0] - odds[1])).mean()
    return ratio


def frozen(other: Any) -> Callable[[Any, mx.array, mx.array], mx.array]:
    return lambda _, tokens, mask: mx.stop_gradient(scores(other, tokens, mask))


@pytest.mark.slow
def test_a_sound_loss_of_pairs(base: Any, batch: Any, reference: Any) -> None:
    result = probed(base, dpo(frozen(reference)), batch)
    assert codes(result, Severity.INFO) == []
    assert result.headline == "the training step is sound: nothing was found"
    measured = result.measured
    assert measured.alignment is not None
    assert measured.pairs is not None
    assert set(measured.alignment.forwards.tolist()) == {0, 1}
    assert measured.pairs.roles.tolist() == [1] * 4 + [-1] * 4
    assert measured.pairs.names == ("chosen", "rejected")
    assert ((measured.alignment.pushes > 0) == (measured.pairs.roles > 0)).all()


@pytest.mark.slow
def test_pairs_the_wrong_way_round(base: Any, batch: Any, reference: Any) -> None:
    result = probed(base, dpo(frozen(reference), sign=-1.0), batch)
    assert codes(result) == ["step-preferences.reversed", "step-preferences.reversed"]
    assert "4 of 4 rows of chosen are made less likely." in result.findings[0].message


@pytest.mark.slow
def test_pairs_by_other_names(base: Any, batch: Any, reference: Any) -> None:
    wrong = dpo(frozen(reference), sign=-1.0)

    def loss(model: Any, a: mx.array, b: mx.array, c: mx.array, d: mx.array) -> Any:
        return wrong(model, a, b, c, d)

    unnamed = probed(base, loss, batch)
    assert codes(unnamed, Severity.INFO) == []
    (unjudged,) = unnamed.unjudged
    assert unjudged.check == "step-preferences"
    assert unjudged.reason.startswith("some rows are made more likely and others less")
    for pairs in (("a", "b"), (0, 1)):
        assert codes(probed(base, loss, batch, pairs=pairs)) == ["step-preferences.reversed"] * 2
    nested = {"chosen": {"ids": batch[0]}, "rejected": {"ids": batch[1]}}
    of_dict = lambda model, batch: wrong(  # noqa: E731
        model, batch["chosen"]["ids"], batch["rejected"]["ids"], *masks
    )
    masks = batch[2:]
    assert codes(probed(base, of_dict, nested)) == ["step-preferences.reversed"] * 2
    with pytest.raises(InputError, match=r"has no array 'x' for pairs \(its arrays: a, b, c, d\)"):
        probed(base, loss, batch, pairs=("x", "b"))
    with pytest.raises(InputError, match="pairs='both' is unknown"):
        probed(base, loss, batch, pairs="both")


@pytest.mark.slow
def test_pairs_in_lists_of_sequences(base: Any, batch: Any) -> None:
    lists = [
        [row[: int(length)] for row, length in zip(tokens, (tokens != 0).sum(axis=1), strict=True)]
        for tokens in batch[:2]
    ]

    def loss(model: Any, chosen: list[mx.array], rejected: list[mx.array], *, of: str) -> mx.array:
        rows = padded([one.tolist() for one in (*chosen, *rejected)], 0)
        sums = scores(model, rows, (rows != 0).astype(mx.float32))
        margin = sums[:4] - sums[4:]
        if of == "centred":
            # Half of the margins are below their mean.
            return -(mx.stop_gradient(margin - margin.mean()) * margin).mean()
        return -nn.log_sigmoid(0.1 * margin).mean()

    of_pairs = lambda model, chosen, rejected: loss(model, chosen, rejected, of="pairs")  # noqa: E731
    result = probed(base, of_pairs, tuple(lists))
    assert codes(result, Severity.INFO) == []
    assert result.measured.pairs is not None
    assert result.measured.pairs.names == ("chosen", "rejected")
    centred = lambda model, chosen, rejected: loss(model, chosen, rejected, of="centred")  # noqa: E731
    found = [one for one in probed(base, centred, tuple(lists)).findings if "reversed" in one.code]
    assert {one.severity for one in found} == {Severity.ERROR}
    assert "centred on the batch's mean" in found[0].fix


@pytest.mark.slow
def test_pairs_in_the_halves_of_one_array(base: Any, batch: Any) -> None:
    chosen, rejected, up, down = batch
    more = chosen.shape[1] - rejected.shape[1]
    tokens, mask = (
        mx.concatenate([one, mx.pad(other, ((0, 0), (0, max(more, 0))))])
        for one, other in ((chosen, rejected), (up, down))
    )

    def simpo(model: Any, tokens: mx.array, mask: mx.array, sign: float = 1.0) -> mx.array:
        means = scores(model, tokens, mask) / mask[:, 1:].sum(axis=-1)
        return -nn.log_sigmoid(sign * 2 * (means[:4] - means[4:]) - 1).mean()

    result = probed(base, simpo, (tokens, mask), pairs="halves")
    assert codes(result, Severity.INFO) == []
    wrong = lambda model, tokens, mask: simpo(model, tokens, mask, -1.0)  # noqa: E731
    result = probed(base, wrong, (tokens, mask), pairs="halves")
    assert codes(result) == ["step-preferences.reversed"] * 2


def own_scores(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
    return mx.stop_gradient(scores(model, tokens, mask))


def without_adapter(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
    scales = [(one, one.scale) for _, one in model.named_modules() if hasattr(one, "lora_b")]
    for one, _ in scales:
        one.scale = 0.0
    try:
        return own_scores(model, tokens, mask)
    finally:
        for one, scale in scales:
            one.scale = scale


@pytest.mark.slow
def test_a_reference_has_to_stay(base: Any, batch: Any) -> None:
    assert codes(probed(base, dpo(without_adapter), batch), Severity.INFO) == []
    result = probed(base, dpo(own_scores), batch)
    assert codes(result) == ["step-update.loss-still"]
    still = result.findings[-1]
    assert "stays at 0.6931 through 5 steps" in still.message
    assert "it is ln 2 (0.6931), as where policy and reference are the same" in still.message
    assert result.measured.update is not None
    assert f"{result.measured.update.predicted:.2g} nats" in still.message


@pytest.mark.slow
def test_answers_that_are_left_out(base: Any, batch: Any) -> None:
    def only_chosen(
        model: Any, chosen: mx.array, rejected: mx.array, up: mx.array, down: mx.array
    ) -> mx.array:
        other = mx.stop_gradient(scores(model, rejected, down))
        return -nn.log_sigmoid(0.1 * (scores(model, chosen, up) - other)).mean()

    result = probed(base, only_chosen, batch)
    assert codes(result) == ["step-preferences.one-sided"]
    assert "No row of rejected has a gradient" in result.findings[0].message
    assert probed(base, orpo, batch).sound
    chosen, _, up, _ = batch
    same = probed(base, orpo, (chosen, chosen, up, up))
    assert [one.reason for one in same.unjudged] == [
        "no row that is trained is one of chosen or rejected alone"
    ]


def grpo(model: Any, tokens: mx.array, mask: mx.array, advantages: mx.array) -> mx.array:
    """On policy: the ratio is one, and so is the value."""
    each = logps(model, tokens, mask)
    ratio = mx.exp(each - mx.stop_gradient(each))
    clipped = mx.clip(ratio, 0.8, 1.2)
    gains = mx.minimum(ratio * advantages[:, None], clipped * advantages[:, None]) * mask[:, 1:]
    return -(gains.sum(axis=-1) / mask[:, 1:].sum(axis=-1)).mean()


def reinforce(
    model: Any,
    tokens: mx.array,
    mask: mx.array,
    rewards: mx.array,
    *,
    reference: Any,
    stopped: bool = True,
) -> mx.array:
    """Rewards less the distance from the reference, which is a number and has no gradient."""
    each = scores(model, tokens, mask)
    distance = each - mx.stop_gradient(scores(reference, tokens, mask))
    advantage = rewards - 0.1 * (mx.stop_gradient(distance) if stopped else distance)
    return -(advantage * each).sum() / mask[:, 1:].sum()


@pytest.mark.slow
def test_sound_policies(base: Any, batch: Any, reference: Any) -> None:
    answers = batch[0], batch[2], mx.array(REWARDS)
    # An answer of average reward is not pushed, which is no row without a target.
    average = batch[0], batch[2], mx.array([1.0, -1.0, 0.0, 0.0])
    assert codes(probed(base, grpo, average), Severity.INFO) == []
    result = probed(base, grpo, answers)
    assert codes(result, Severity.INFO) == []
    assert result.sound
    policy = result.measured.policy
    assert policy is not None
    assert policy.name == "advantages"
    assert ((policy.pushes > 0) == (policy.rewards > 0)).all()
    loss = lambda model, tokens, mask, rewards: reinforce(  # noqa: E731
        model, tokens, mask, rewards, reference=reference
    )
    assert codes(probed(base, loss, answers), Severity.INFO) == []


@pytest.mark.slow
def test_a_penalty_that_has_a_gradient(base: Any, batch: Any, reference: Any) -> None:
    loss = lambda model, tokens, mask, rewards: reinforce(  # noqa: E731
        model, tokens, mask, rewards, reference=reference, stopped=False
    )
    result = probed(base, loss, (batch[0], batch[2], mx.array(REWARDS)))
    assert codes(result) == ["step-preferences.not-reversed"]
    assert "4 of 4 answers are pushed the same way" in result.findings[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda advantages: -advantages, "step-preferences.wrong-way"),
        (mx.abs, "step-preferences.unused"),
        (lambda advantages: mx.sign(advantages) + 0.7, "step-preferences.not-reversed"),
        (lambda advantages: advantages + 1.0, "step-preferences.not-reversed"),
    ],
)
def test_rewards_that_are_lost_on_the_way(base: Any, batch: Any, change: Any, code: str) -> None:
    loss = lambda model, tokens, mask, advantages: grpo(  # noqa: E731
        model, tokens, mask, change(advantages)
    )
    assert codes(probed(base, loss, (batch[0], batch[2], mx.array(REWARDS)))) == [code]


@pytest.mark.slow
def test_rewards_that_are_the_same_say_nothing(base: Any, batch: Any) -> None:
    def grouped(model: Any, tokens: mx.array, mask: mx.array, rewards: mx.array) -> mx.array:
        spread = mx.sqrt(mx.var(rewards) + 1e-8)
        return grpo(model, tokens, mask, (rewards - rewards.mean()) / spread)

    given = batch[0], batch[2], mx.ones((4,))
    result = probed(base, grouped, given)
    assert {one.check for one in result.unjudged} >= {"step-alignment", "step-preferences"}
    assert "all rewards of this batch are the same" in result.unjudged[0].reason
    differing = probed(base, grouped, (batch[0], batch[2], mx.array(REWARDS)))
    assert codes(differing, Severity.INFO) == []

    def without_floor(model: Any, tokens: mx.array, mask: mx.array, rewards: mx.array) -> mx.array:
        return grpo(model, tokens, mask, (rewards - rewards.mean()) / mx.sqrt(mx.var(rewards)))

    broken = probed(base, without_floor, (batch[0], batch[2], mx.array(REWARDS)))
    assert "step-preferences.not-finite" in codes(broken)


@pytest.mark.slow
def test_rewards_that_the_loss_computes(base: Any, batch: Any) -> None:
    def with_rewards(factor: float) -> tuple[mx.array, mx.array, list[float]]:
        return batch[0], batch[2], [factor * one for one in REWARDS]

    def loss(model: Any, tokens: mx.array, mask: mx.array, given: list[float]) -> mx.array:
        return grpo(model, tokens, mask, mx.abs(mx.array(given)))

    result = probed(base, loss, with_rewards(1.0), rewards=with_rewards)
    assert codes(result) == ["step-preferences.unused"]
    assert probed(base, loss, with_rewards(1.0), rewards="given").counts["error"] == 1


@pytest.mark.slow
def test_labels_are_turned_round(base: Any, batch: Any, reference: Any) -> None:
    tokens, mask = batch[0], batch[2]

    def kto(other: Any) -> Loss:
        def loss(model: Any, tokens: mx.array, mask: mx.array, desirable: mx.array) -> mx.array:
            ratio = 0.1 * (scores(model, tokens, mask) - other(model, tokens, mask))
            return -nn.log_sigmoid(mx.where(desirable, ratio, -ratio)).mean()

        return loss

    given = (tokens, mask, mx.array([True, False, True, False]))
    result = probed(base, kto(frozen(reference)), given, rewards="desirable")
    assert codes(result, Severity.INFO) == []
    result = probed(base, kto(own_scores), given, rewards="desirable")
    assert codes(result) == ["step-update.loss-still"]


@pytest.mark.slow
def test_smoothed_labels_are_no_pairs(base: Any, batch: Any) -> None:
    def loss(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
        losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], label_smoothing=0.1)
        return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()

    result = probed(base, loss, (batch[0], batch[2]))
    assert codes(result, Severity.INFO) == []
    assert [one.check for one in result.unjudged] == ["step-alignment"]
    assert not result.sound
    assert result.headline == "nothing wrong was found, 1 of 4 checks could not judge"


@pytest.mark.slow
def test_a_rate_of_zero(base: Any, batch: Any) -> None:
    def loss(model: Any, tokens: mx.array, mask: mx.array) -> mx.array:
        return -logps(model, tokens, mask).sum() / mask[:, 1:].sum()

    given = batch[0], batch[2]
    still = probe(base[0], loss, given, optim.Adam(0.0), base[1])
    assert codes(still) == ["step-update.nothing-changed"]
    warming = optim.Adam(optim.linear_schedule(0.0, 1e-4, 100))
    assert codes(probe(base[0], loss, given, warming, base[1])) == []
