"""The probe on mlx-lm's own loss and on this project's, and that it leaves no trace."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.datasets import CacheDataset, ChatDataset
from mlx_lm.tuner.trainer import default_loss, iterate_batches

from fixtures.lab.cases.workshop import rows_of
from fixtures.trainers import twins, write_twins
from fixtures.trainers.common import answer_loss, next_token_batch
from mlxdoctor import assert_training_step_sound, probe
from mlxdoctor.finding import Severity, Status
from mlxdoctor.measure.training_step.logits import SpecialTokens, read
from mlxdoctor.measure.training_step.measurement import measure
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.probe import probing
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.masked_loss import exact_loss
from tests.conftest import Call
from tests.probe.conftest import codes


@pytest.fixture(scope="module")
def batch(base: tuple[Any, Any]) -> Any:
    data = CacheDataset(ChatDataset(rows_of()[:32], base[1]))
    for index in range(len(data)):
        data[index]
    return next(iterate_batches(data, 4, 256))


@pytest.mark.slow
def test_mlx_lms_loss_trains_a_padding_token(base: tuple[Any, Any], batch: Any) -> None:
    result = probe(base[0], default_loss, batch, optim.Adam(1e-4), base[1])
    assert codes(result) == ["step-alignment.padding-target"]
    found = next(one for one in result.findings if one.code == "step-alignment.padding-target")
    assert found.severity is Severity.WARNING
    assert "github.com/ml-explore/mlx-lm/pull/1697" in found.message
    assert found.measured["padding"] == 4


@pytest.mark.slow
def test_our_loss_is_clean(base: tuple[Any, Any], batch: Any) -> None:
    result = assert_training_step_sound(
        base[0], exact_loss, batch, optimizer=optim.Adam(1e-4), tokenizer=base[1], warnings=True
    )
    alignment = result.measured.alignment
    tokens, spans = np.array(batch[0]), np.array(batch[1])
    for row, (_, length) in enumerate(spans):
        trained = np.flatnonzero(alignment.trained[row])
        assert trained.tolist() == list(range(length - 1))
        assert (alignment.targets[row, trained] == tokens[row, trained + 1]).all()
    assert alignment.weights[alignment.trained] == pytest.approx(
        1 / alignment.trained.sum(), rel=1e-3
    )


def snapshot(model: nn.Module) -> dict[str, bytes]:
    return {name: np.array(one).tobytes() for name, one in tree_flatten(model.parameters())}


@pytest.mark.slow
def test_everything_is_handed_back(base: tuple[Any, Any], batch: Any) -> None:
    model = base[0]
    model.train()
    optimizer = optim.Adam(1e-2)
    optimizer.init(model.trainable_parameters())
    before, kind = snapshot(model), type(model)
    trainable = sorted(name for name, _ in tree_flatten(model.trainable_parameters()))
    state = [np.array(one) for _, one in tree_flatten(optimizer.state)]
    mx.random.seed(7)
    wanted = mx.random.normal((4,)).tolist()
    mx.random.seed(7)
    result = probe(model, exact_loss, batch, optimizer, steps=3)
    assert any(one.change > 0 for one in result.measured.update.parameters)
    assert snapshot(model) == before
    assert type(model) is kind
    assert model.training
    assert sorted(name for name, _ in tree_flatten(model.trainable_parameters())) == trainable
    after = [np.array(one) for _, one in tree_flatten(optimizer.state)]
    assert all(np.array_equal(old, new) for old, new in zip(state, after, strict=True))
    assert mx.random.normal((4,)).tolist() == wanted


def test_a_step_that_writes_into_frozen_weights(base: tuple[Any, Any]) -> None:
    model, tokenizer = base

    def step(inputs: mx.array, targets: mx.array) -> None:
        del inputs, targets
        model.model.norm.weight = model.model.norm.weight + 1.0

    result = probe(model, answer_loss, next_token_batch(tokenizer), step=step)
    found = {one.code: one for one in result.findings}
    assert found["step-update.frozen-changed"].where == "model.norm.weight"
    assert "step-update.unchanged" in found


@pytest.mark.slow
def test_a_compiled_loss_is_seen(base: tuple[Any, Any], batch: Any) -> None:
    model = base[0]
    compiled = mx.compile(lambda tokens, spans: exact_loss(model, tokens, spans)[0])

    def loss_fn(tokens: mx.array, spans: mx.array) -> mx.array:
        value: mx.array = compiled(tokens, spans)
        return value

    measured = probe(model, loss_fn, batch).measured
    assert measured.alignment.trained.any()


def test_a_loss_that_never_calls_the_model_is_inconclusive(base: tuple[Any, Any]) -> None:
    model = base[0]
    inputs, _ = next_token_batch(base[1])

    def loss_fn(tokens: mx.array) -> mx.array:
        hidden: mx.array = model.model(tokens)
        return hidden.square().mean()

    outcomes = {one.check: one for one in probe(model, loss_fn, (inputs,)).outcomes}
    assert outcomes["step-alignment"].status.value == "inconclusive"
    assert "never called the model" in outcomes["step-alignment"].reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    ["spread", "dict", "one argument", "a tuple back", "a dict back", "without the model"],
)
def test_any_signature(base: tuple[Any, Any], shape: str) -> None:
    model, tokenizer = base
    inputs, targets = next_token_batch(tokenizer)
    batch: Any = (inputs, targets)
    loss: Any = answer_loss
    if shape == "dict":
        batch = {"targets": targets, "inputs": inputs}
    elif shape == "one argument":
        batch = {"inputs": inputs, "targets": targets}
        loss = lambda model, batch: answer_loss(model, batch["inputs"], batch["targets"])  # noqa: E731
    elif shape == "a tuple back":
        loss = lambda model, x, y: (answer_loss(model, x, y), mx.array(3))  # noqa: E731
    elif shape == "a dict back":
        loss = lambda model, x, y: {"loss": answer_loss(model, x, y)}  # noqa: E731
    elif shape == "without the model":
        loss = lambda x, y: answer_loss(model, x, y)  # noqa: E731
    result = probe(model, loss, batch, tokenizer=tokenizer)
    assert result.sound
    assert result.measured.alignment is not None


def test_what_cannot_be_probed(base: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match=r"not an mlx\.nn\.Module"):
        probe({"model": 1}, answer_loss, ())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be called with the model and a batch of 1 parts"):
        probe(base[0], lambda model, a, b, c: a, (mx.array([[1]]),))
    with pytest.raises(InputError, match=r"returned an array of shape"):
        probe(base[0], lambda model, tokens: model(tokens), (mx.array([[1, 2]]),))
    with pytest.raises(InputError, match="expect='qlora' is unknown; say one of lora, dora, full"):
        probe(base[0], answer_loss, (mx.array([[1, 2]]),), expect="qlora")


@pytest.mark.slow
def test_the_assertion_says_what_is_wrong(base: tuple[Any, Any]) -> None:
    model, tokenizer = base
    inputs, _ = next_token_batch(tokenizer)

    def loss_fn(model: Any, tokens: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(tokens), tokens).mean()

    with pytest.raises(
        AssertionError, match=r"\[step-alignment.misaligned\] \d+% of \d+ positions"
    ):
        assert_training_step_sound(model, loss_fn, (inputs,))
    found = {
        "step-alignment.misaligned",
        "step-update.starts-above-uniform",
        "step-alignment.padding-trained",
    }
    assert_training_step_sound(model, loss_fn, (inputs,), allow=found)


@pytest.mark.slow
def test_a_loss_of_the_wrong_sign_fails_the_assertion(base: tuple[Any, Any]) -> None:
    def loss_fn(model: Any, tokens: mx.array) -> mx.array:
        return -nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    inputs, _ = next_token_batch(base[1])
    with pytest.raises(AssertionError, match=r"pushed-away\] \d+ of \d+ trained positions"):
        assert_training_step_sound(base[0], loss_fn, (inputs,))


@pytest.mark.slow
def test_a_summed_loss_fails_the_assertion(base: tuple[Any, Any]) -> None:
    def loss_fn(model: Any, tokens: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).sum()

    inputs, _ = next_token_batch(base[1])
    with pytest.raises(AssertionError, match="as where losses are added up"):
        assert_training_step_sound(base[0], loss_fn, (inputs,))


def soft(logits: mx.array, share: float) -> mx.array:
    targets = mx.softmax(mx.arange(logits.shape[-1]) / 7.0)
    losses = -(nn.log_softmax(logits, axis=-1) * targets).sum(axis=-1)
    return (losses * share).mean()


def test_reading_the_gradient_of_a_weighted_cross_entropy() -> None:
    mx.random.seed(3)
    logits = mx.random.normal((2, 5, 11)) * 4
    targets = mx.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    weights = mx.array([[0.0, 1.0, 0.25, 0.5, 2.0], [1e-3, 0.0, 0.0, 1.0, 1.0]])

    def loss(one: mx.array) -> mx.array:
        return (nn.losses.cross_entropy(one, targets) * weights).sum()

    after = np.full((2, 5), -1, np.int32)
    found, weighed, hard = read(mx.grad(loss)(logits), logits, after)
    expected = np.where(np.array(weights) > 0, np.array(targets), -1)
    assert found.tolist() == expected.tolist()
    assert weighed == pytest.approx(np.array(weights), rel=1e-3, abs=1e-7)
    assert hard == np.count_nonzero(expected >= 0)
    _, _, of_soft = read(mx.grad(lambda one: soft(one, 1.0))(logits), logits, after)
    assert of_soft == 0


@pytest.mark.parametrize(
    ("row", "length"),
    [
        ([5, 6, 7, 9, 0, 0], 4),
        ([5, 6, 7, 9, 9, 9], 4),
        ([5, 6, 7, 8, 8, 0], 6),
        ([5, 6, 7, 8, 9, 0], 5),
        ([5, 6, 7, 8, 8, 8], 6),
        ([0, 0, 0, 0, 0, 0], 0),
    ],
)
def test_row_lengths(row: list[int], length: int) -> None:
    assert SpecialTokens((0, 9), (9,)).row_length(np.array(row, np.int32)) == length


@pytest.fixture
def trainer_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        twins()["gradient_filter"][1] + "\n"
        "def nothing():\n    return 3\n"
        "def needs(path):\n    return parts()\n"
        "def short():\n    return {'model': 1}\n"
        "def as_dict():\n"
        "    names = ('model', 'loss_fn', 'batch', 'optimizer', 'tokenizer', 'step')\n"
        "    return dict(zip(names, parts()))\n"
    )
    return path


@pytest.mark.slow
def test_the_command(trainer_file: Path, tmp_path: Path, call: Call) -> None:
    code, out, err = call("probe", f"{trainer_file}:as_dict")
    assert (code, "the training step is sound" in out) == (0, True)
    assert "Probing 0.5M parameters" in err
    code, out, _ = call("probe", f"{trainer_file}:parts", "--stdout", "json")
    data = json.loads(out)
    assert code == 0
    assert data["sound"] is True
    assert next(iter(data["outcomes"]))["check"] == "step-state"
    wrong = write_twins(tmp_path) / "faulty" / "targets_identity.py"
    code, out, _ = call("probe", f"{wrong}:parts")
    assert (code, "step-alignment.misaligned" in out) == (1, True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "returned a int"),
        ("needs", ":needs: missing a required argument: 'path'"),
        ("short", "has no 'loss_fn'"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_functions_that_return_no_trainer(
    trainer_file: Path, name: str, said: str, call: Call
) -> None:
    code, _, err = call("probe", f"{trainer_file}:{name}")
    assert (code, said in err) == (2, True)
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_check_of_a_step_from_another_package_is_asked_too(
    base: tuple[Any, Any], batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = [one for one in probing.discover() if one.name == "step-state"]
    other = replace(known, name="their-own")
    monkeypatch.setattr(probing, "discover", lambda: (other, known))
    measured = measure(Trainer(base[0], exact_loss, batch))
    assert [one.check for one in probing.judge(measured).outcomes] == ["step-state", "their-own"]


class Small(nn.Module):
    """A language model of one attention layer, whose mask and parts tests change."""

    def __init__(self, mask: str | None = "causal") -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.attend = nn.MultiHeadAttention(16, 2)
        self.attend.out_proj.weight = mx.zeros((16, 16))
        self.norm = nn.BatchNorm(16)
        # A plain array of the root, as rotary tables are.
        self._table = mx.ones((4,))
        self.mask = mask

    def __call__(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens)
        mask = nn.MultiHeadAttention.create_additive_causal_mask(tokens.shape[1], x.dtype)
        x = x + self.attend(x, x, x, mask if self.mask else None)
        return self.head(self.norm(x) if self.mask == "batch" else x)


def next_tokens(model: Any, tokens: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(tokens)[:, :-1], tokens[:, 1:], reduction="mean")


def test_parts_that_begin_at_zero_and_statistics_of_batches_are_sound() -> None:
    mx.random.seed(0)
    tokens = mx.random.randint(0, 32, (4, 12))
    result = probe(Small("batch"), next_tokens, (tokens,), optim.Adam(1e-2), expect="full")
    assert [code for code in codes(result) if "step-state" not in code] == []
    assert result.measured.sees_ahead == 0.0


def test_a_model_without_a_causal_mask_sees_ahead() -> None:
    mx.random.seed(0)
    model = Small(None)
    model.attend.out_proj.weight = mx.random.normal((16, 16))
    tokens = mx.random.randint(0, 32, (4, 12))
    result = probe(model, next_tokens, (tokens,), optim.Adam(1e-2), expect="full")
    assert "step-alignment.sees-ahead" in codes(result)
    assert result.measured.sees_ahead == 1.0


def test_a_loss_of_another_head_has_no_targets_to_judge() -> None:
    class Valued(Small):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Linear(16, 1)

        def __call__(self, tokens: mx.array) -> Any:
            return super().__call__(tokens), self.value(self.embed(tokens)).mean()

    def loss(model: Any, tokens: mx.array) -> mx.array:
        return (model(tokens)[1] - 1.0) ** 2

    result = probe(Valued(), loss, (mx.random.randint(0, 32, (4, 12)),), expect="full")
    assert "step-alignment.no-targets" not in codes(result)
    assert any("another head" in outcome.reason for outcome in result.outcomes)


def test_a_compiled_loss_that_leaves_its_arrays_in_the_model_is_probed() -> None:
    model = Small()

    @mx.compile
    def compiled(parameters: Any, tokens: mx.array) -> mx.array:
        model.update(parameters)
        return next_tokens(model, tokens)

    def loss(model: Any, tokens: mx.array) -> mx.array:
        return compiled(model.parameters(), tokens)

    result = probe(model, loss, (mx.random.randint(0, 32, (4, 12)),), expect="full")
    assert not [outcome for outcome in result.outcomes if outcome.status is Status.CRASHED]


def test_an_adapter_of_ones_own_may_be_called_lora_a_in_capitals() -> None:
    model = Small()
    model.freeze()
    model.head.lora_A, model.head.lora_B = mx.ones((16, 2)), mx.zeros((2, 32))

    def loss(model: Any, tokens: mx.array) -> mx.array:
        x = model.embed(tokens)
        logits = model(tokens) + (x @ model.head.lora_A) @ model.head.lora_B
        return nn.losses.cross_entropy(logits[:, :-1], tokens[:, 1:], reduction="mean")

    result = probe(model, loss, (mx.random.randint(0, 32, (4, 12)),), expect="lora")
    assert result.measured.state.adapters == ("head",)
    assert "step-update.no-gradient" not in codes(result)


def test_what_16_bits_round_away_is_told_as_that() -> None:
    model = Small()
    model.set_dtype(mx.bfloat16)
    tokens = mx.random.randint(0, 32, (4, 12))
    result = probe(model, next_tokens, (tokens,), optim.SGD(1e-9), expect="full")
    (still,) = (one for one in result.findings if one.code == "step-update.unchanged")
    assert "in 16 bits a small step is rounded away" in still.message
    assert "float32" in (still.fix or "")
