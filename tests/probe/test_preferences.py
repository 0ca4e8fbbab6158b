"""Losses of pairs and of policies: sound ones pass, each fault is found."""

from collections.abc import Callable
from functools import cache
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

pytestmark = pytest.mark.slow

REJECTED = ("I do not know.", "The answer is blue.")
REWARDS = (1.0, -1.0, 0.5, -0.5)
WRONG_WAY = ["step-preferences.wrong-way"]
Array = mx.array
Scores = Callable[[Any, Array, Array], Array]


@pytest.fixture(scope="module")
def batch(base: tuple[Any, Any]) -> tuple[Array, ...]:
    """Chosen tokens, rejected tokens, and the masks of both."""
    tokenizer = base[1]
    good = encoded(tokenizer)
    bad = [
        (prompt, [*tokenizer.encode(REJECTED[row % 2], add_special_tokens=False), answer[-1]])
        for row, (prompt, answer) in enumerate(good)
    ]
    tokens = [padded([prompt + answer for prompt, answer in pairs], 0) for pairs in (good, bad)]
    masks = [
        padded([[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs], 0)
        for pairs in (good, bad)
    ]
    return *tokens, *(mask.astype(mx.float32) for mask in masks)


@pytest.fixture(scope="module")
def answers(batch: tuple[Array, ...]) -> tuple[Array, ...]:
    """Tokens, the mask of the answers, and rewards that differ."""
    return batch[0], batch[2], mx.array(REWARDS)


def logps(model: Any, tokens: Array, mask: Array) -> Array:
    """The log probability of each position's token, 0 where it does not count."""
    losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    return -losses * mask[:, 1:]


def scores(model: Any, tokens: Array, mask: Array) -> Array:
    return logps(model, tokens, mask).sum(axis=-1)


def means(model: Any, tokens: Array, mask: Array) -> Array:
    return scores(model, tokens, mask) / mask[:, 1:].sum(axis=-1)


def own_scores(model: Any, tokens: Array, mask: Array) -> Array:
    return mx.stop_gradient(scores(model, tokens, mask))


@cache
def reference() -> Any:
    """A model that is not trained."""
    return load_base()[0]


def base_scores(_: Any, tokens: Array, mask: Array) -> Array:
    return own_scores(reference(), tokens, mask)


def without_adapter(model: Any, tokens: Array, mask: Array) -> Array:
    scales = [
        (layer, layer.scale) for _, layer in model.named_modules() if hasattr(layer, "lora_b")
    ]
    for layer, _ in scales:
        layer.scale = 0.0
    try:
        return own_scores(model, tokens, mask)
    finally:
        for layer, scale in scales:
            layer.scale = scale


def dpo(other: Scores = base_scores, sign: float = 1.0) -> Any:
    def loss(model: Any, chosen: Array, rejected: Array, up: Array, down: Array) -> Array:
        margin = scores(model, chosen, up) - scores(model, rejected, down)
        margin = margin - other(model, chosen, up) + other(model, rejected, down)
        return -nn.log_sigmoid(sign * 0.1 * margin).mean()

    return loss


def orpo(model: Any, chosen: Array, rejected: Array, up: Array, down: Array) -> Array:
    each = means(model, chosen, up), means(model, rejected, down)
    odds = [mean - mx.log1p(-mx.exp(mean)) for mean in each]
    ratio: Array = (-each[0] - 0.1 * nn.log_sigmoid(odds[0] - odds[1])).mean()
    return ratio


def only_chosen(model: Any, chosen: Array, rejected: Array, up: Array, down: Array) -> Array:
    margin = scores(model, chosen, up) - own_scores(model, rejected, down)
    return -nn.log_sigmoid(0.1 * margin).mean()


@pytest.mark.parametrize("loss", [dpo(), dpo(without_adapter), orpo])
def test_sound_losses_of_pairs(base: Any, batch: Any, loss: Any) -> None:
    result = probed(base, loss, batch)
    assert codes(result, Severity.INFO) == []
    assert result.headline == "the training step is sound: nothing was found"
    alignment, preferences = result.measured.alignment, result.measured.preferences
    assert set(alignment.forwards.tolist()) == {0, 1}
    assert preferences.names == ("chosen", "rejected")
    assert preferences.rewards.tolist() == [1] * 4 + [-1] * 4
    assert ((preferences.pushes > 0) == (preferences.rewards > 0)).all()


@pytest.mark.parametrize(
    ("loss", "wrong", "message"),
    [
        (dpo(sign=-1.0), WRONG_WAY * 2, "4 of 4 rows of rejected are made more likely."),
        (only_chosen, ["step-preferences.one-sided"], "No row of rejected has a gradient"),
        (
            dpo(own_scores),
            ["step-update.loss-still"],
            "predicts a change of {foreseen:.2g} nats: it is ln 2 (0.6931), as where policy and",
        ),
    ],
)
def test_faulty_losses_of_pairs(
    base: Any, batch: Any, loss: Any, wrong: list[str], message: str
) -> None:
    result = probed(base, loss, batch)
    assert codes(result, Severity.INFO) == wrong
    update = result.measured.update
    assert message.format(foreseen=update.predicted) in result.findings[-1].message


def test_pairs_by_other_names(base: Any, batch: Any) -> None:
    wrong = dpo(sign=-1.0)

    def loss(model: Any, a: Array, b: Array, c: Array, d: Array) -> Any:
        return wrong(model, a, b, c, d)

    unnamed = probed(base, loss, batch)
    assert codes(unnamed, Severity.INFO) == []
    (unjudged,) = unnamed.unjudged
    assert unjudged.check == "step-preferences"
    assert unjudged.reason.startswith("some rows are made more likely and others less")
    for pairs in (("a", "b"), (0, 1)):
        assert codes(probed(base, loss, batch, pairs=pairs)) == WRONG_WAY * 2
    nested = {"chosen": {"ids": batch[0]}, "rejected": {"ids": batch[1]}}
    of_dict = lambda model, batch: wrong(  # noqa: E731
        model, batch["chosen"]["ids"], batch["rejected"]["ids"], *masks
    )
    masks = batch[2:]
    assert codes(probed(base, of_dict, nested)) == WRONG_WAY * 2
    with pytest.raises(InputError, match=r"has no array 'x' for pairs \(its arrays: a, b, c, d\)"):
        probed(base, loss, batch, pairs=("x", "b"))
    with pytest.raises(InputError, match="pairs='both' is unknown"):
        probed(base, loss, batch, pairs="both")
    chosen, _, up, _ = batch
    (same,) = probed(base, orpo, (chosen, chosen, up, up)).unjudged
    assert same.reason == "no row that is trained is one of chosen or rejected alone"


def margins(model: Any, rows: Array) -> Array:
    sums = scores(model, rows, (rows != 0).astype(mx.float32))
    return sums[:4] - sums[4:]


@pytest.mark.parametrize("is_centred", [False, True])
def test_pairs_in_lists_of_sequences(base: Any, batch: Any, is_centred: bool) -> None:
    lists = [
        [row[: int(length)] for row, length in zip(tokens, (tokens != 0).sum(axis=1), strict=True)]
        for tokens in batch[:2]
    ]

    def loss(model: Any, chosen: list[Array], rejected: list[Array]) -> Array:
        margin = margins(model, padded([row.tolist() for row in (*chosen, *rejected)], 0))
        if is_centred:
            # Half of the margins are below their mean.
            return -(mx.stop_gradient(margin - margin.mean()) * margin).mean()
        return -nn.log_sigmoid(0.1 * margin).mean()

    result = probed(base, loss, tuple(lists))
    assert result.measured.preferences.names == ("chosen", "rejected")
    wrong = [each for each in result.findings if each.code.startswith("step-preferences")]
    assert {each.code for each in wrong} == set(WRONG_WAY * is_centred)
    assert {each.severity for each in wrong} <= {Severity.ERROR}


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pairs_in_the_halves_of_one_array(base: Any, batch: Any, sign: float) -> None:
    chosen, rejected, up, down = batch
    more = max(chosen.shape[1] - rejected.shape[1], 0)
    tokens, mask = (
        mx.concatenate([high, mx.pad(low, ((0, 0), (0, more)))])
        for high, low in ((chosen, rejected), (up, down))
    )

    def simpo(model: Any, tokens: Array, mask: Array) -> Array:
        each = means(model, tokens, mask)
        return -nn.log_sigmoid(sign * 2 * (each[:4] - each[4:]) - 1).mean()

    result = probed(base, simpo, (tokens, mask), pairs="halves")
    assert codes(result, Severity.INFO) == (WRONG_WAY * 2 if sign < 0 else [])


def grpo(model: Any, tokens: Array, mask: Array, advantages: Array) -> Array:
    """On policy: the ratio is one, and so is the value."""
    each = logps(model, tokens, mask)
    ratio = mx.exp(each - mx.stop_gradient(each))
    clipped = mx.clip(ratio, 0.8, 1.2)
    gains = mx.minimum(ratio * advantages[:, None], clipped * advantages[:, None]) * mask[:, 1:]
    return -(gains.sum(axis=-1) / mask[:, 1:].sum(axis=-1)).mean()


def reinforce(is_stopped: bool) -> Any:
    """Rewards less the distance from the reference, which is a number and has no gradient."""

    def loss(model: Any, tokens: Array, mask: Array, rewards: Array) -> Array:
        each = scores(model, tokens, mask)
        distance = each - base_scores(model, tokens, mask)
        advantage = rewards - 0.1 * (mx.stop_gradient(distance) if is_stopped else distance)
        return -(advantage * each).sum() / mask[:, 1:].sum()

    return loss


def grouped(model: Any, tokens: Array, mask: Array, rewards: Array) -> Array:
    spread = mx.sqrt(mx.var(rewards) + 1e-8)
    return grpo(model, tokens, mask, (rewards - rewards.mean()) / spread)


def changing(change: Callable[[Array], Array]) -> Any:
    return lambda model, tokens, mask, advantages: grpo(model, tokens, mask, change(advantages))


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        (grpo, None),
        (grouped, None),
        (reinforce(True), None),
        (reinforce(False), "not-reversed"),
        (changing(lambda advantages: -advantages), "wrong-way"),
        (changing(mx.abs), "unused"),
        (changing(lambda advantages: mx.sign(advantages) + 0.7), "not-reversed"),
        (changing(lambda advantages: advantages + 1.0), "not-reversed"),
    ],
)
def test_losses_of_policies(base: Any, answers: Any, loss: Any, wrong: str | None) -> None:
    result = probed(base, loss, answers)
    assert codes(result) == ([f"step-preferences.{wrong}"] if wrong else [])
    policy = result.measured.policy
    assert policy.names[0] in {"advantages", "rewards"}
    if wrong is None:
        assert result.sound
        assert ((policy.pushes > 0) == (policy.rewards > 0)).all()


def test_rewards_that_are_the_same_say_nothing(base: Any, answers: Any) -> None:
    # An answer of average reward is not pushed, which is no row without a target.
    average = *answers[:2], mx.array([1.0, -1.0, 0.0, 0.0])
    assert codes(probed(base, grpo, average), Severity.INFO) == []
    result = probed(base, grouped, (*answers[:2], mx.ones((4,))))
    assert {outcome.check for outcome in result.unjudged} >= {"step-alignment", "step-preferences"}
    assert "all rewards of this batch are the same" in result.unjudged[0].reason


def test_rewards_that_the_loss_computes(base: Any, answers: Any) -> None:
    def with_rewards(factor: float) -> tuple[Array, Array, list[float]]:
        return *answers[:2], [factor * reward for reward in REWARDS]

    def loss(model: Any, tokens: Array, mask: Array, given: list[float]) -> Array:
        return grpo(model, tokens, mask, mx.abs(mx.array(given)))

    for rewards in (with_rewards, "given"):
        result = probed(base, loss, with_rewards(1.0), rewards=rewards)
        assert codes(result) == ["step-preferences.unused"]


@pytest.mark.parametrize(
    ("other", "wrong"), [(base_scores, []), (own_scores, ["step-update.loss-still"])]
)
def test_labels_are_turned_round(base: Any, answers: Any, other: Scores, wrong: list[str]) -> None:
    def kto(model: Any, tokens: Array, mask: Array, desirable: Array) -> Array:
        ratio = 0.1 * (scores(model, tokens, mask) - other(model, tokens, mask))
        return -nn.log_sigmoid(mx.where(desirable, ratio, -ratio)).mean()

    labels = mx.array([True, False, True, False])
    result = probed(base, kto, (*answers[:2], labels), rewards="desirable")
    assert codes(result, Severity.INFO) == wrong


def test_smoothed_labels_are_no_pairs(base: Any, answers: Any) -> None:
    def loss(model: Any, tokens: Array, mask: Array) -> Array:
        losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], label_smoothing=0.1)
        return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()

    result = probed(base, loss, answers[:2])
    assert codes(result, Severity.INFO) == []
    assert [outcome.check for outcome in result.unjudged] == ["step-alignment"]
    assert not result.sound
    assert result.headline == "nothing wrong was found, 1 of 3 checks could not judge"


def test_a_rate_of_zero(base: Any, answers: Any) -> None:
    def loss(model: Any, tokens: Array, mask: Array) -> Array:
        return -logps(model, tokens, mask).sum() / mask[:, 1:].sum()

    still = probe(base[0], loss, answers[:2], optim.Adam(0.0), base[1])
    assert codes(still) == ["step-update.unchanged"]
    warming = optim.Adam(optim.linear_schedule(0.0, 1e-4, 100))
    assert codes(probe(base[0], loss, answers[:2], warming, base[1])) == []
