"""Each fault does what it says: to the settings, to what a step supervises, or to the files."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from fixtures.lab.cases.workshop import rows_of
from fixtures.lab.faults import FAULTS
from mlxdoctor.twin import Settings, train
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.prepared import parts_of
from tests.reproduce.real import settings as settings_of

CAUSES = Path(__file__).parents[2] / "mlxdoctor" / "causes.toml"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    changes = {"num_layers": 2, "iters": 1, "batch_size": 2, "val_batches": 1}
    return settings_of(tmp_path / "run", **changes, rank=4, mask_prompt=True)


class Table:
    """A model whose logits are one row a token: the gradient shows the targets."""

    def __init__(self, weights: mx.array) -> None:
        self.weights = weights

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.weights[tokens]


TOKENS = mx.array([[5, 6, 7, 8, 9, 0, 0, 0]])
SPANS = mx.array([[2, 5]])


def targets_by_input(parts: Parts) -> dict[int, int]:
    """Input token -> the one target its logits are pushed towards."""

    def loss(weights: mx.array) -> mx.array:
        return parts.loss(Table(weights), TOKENS, SPANS)[0]

    gradient = np.array(mx.grad(loss)(mx.zeros((10, 10))))
    return {int(t): int(row.argmin()) for t, row in enumerate(gradient) if row.min() < 0}


def trainable(parts: Parts, settings: Settings) -> set[str]:
    model, _ = parts.load(settings)
    parts.prepare(model, settings)
    return {name for name, _ in tree_flatten(model.trainable_parameters())}


def test_every_fault_has_a_known_cause() -> None:
    causes = tomllib.loads(CAUSES.read_text())["causes"]
    for name, fault in FAULTS.items():
        assert name == fault.id
        assert fault.cause in causes
        assert fault.severities


@pytest.mark.parametrize(
    ("name", "severity", "expected"),
    [
        (None, None, {6: 7, 7: 8, 8: 9}),
        ("labels-identity", 0, {7: 7, 8: 8, 9: 9}),
        ("labels-shifted-twice", 2, {5: 7, 6: 8, 7: 9}),
        ("labels-shifted-twice", 3, {5: 8, 6: 9}),
        # The whole prompt, although it is masked.
        ("prompt-supervised", 1.0, {5: 6, 6: 7, 7: 8, 8: 9}),
    ],
)
def test_what_is_supervised(
    settings: Settings, name: str | None, severity: object, expected: dict[int, int]
) -> None:
    exact = replace(settings, mode="exact")
    faulty, parts = FAULTS[name].inject(exact, severity) if name else (exact, parts_of(exact))
    assert faulty.mask_prompt
    assert targets_by_input(parts) == expected


@pytest.mark.parametrize(
    ("name", "token"),
    [("padding-supervised", "pad_token_id"), ("end-token-padding", "eos_token_id")],
)
def test_padding_is_supervised(settings: Settings, name: str, token: str) -> None:
    _, parts = FAULTS[name].inject(settings, 160)
    _, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer).train
    batch = next(parts.batches(settings).train(rows))
    assert batch.tokens.shape == (2, 160)
    assert (batch.spans[:, 1] == 160).all()
    assert (batch.tokens[:, -1] == getattr(tokenizer, token)).all()


def test_rows_lose_their_end(settings: Settings) -> None:
    _, parts = FAULTS["no-end-token"].inject(settings, 1.0)
    _, tokenizer = parts.load(settings)
    sound = parts_of(settings).encode(settings, tokenizer).train
    rows = parts.encode(settings, tokenizer).train
    assert all(tokenizer.eos_token_id in row.tokens[row.offset :] for row in sound)
    assert not any(tokenizer.eos_token_id in row.tokens[row.offset :] for row in rows)


def test_the_end_token_is_masked_by_its_id(settings: Settings) -> None:
    _, parts = FAULTS["end-token-masked"].inject(settings)
    _, tokenizer = parts.load(settings)
    tokens = mx.array([[5, 6, 7, tokenizer.eos_token_id]])
    model = Table(mx.zeros((tokenizer.vocab_size + 3, tokenizer.vocab_size + 3)))
    _, supervised = parts.loss(model, tokens, mx.array([[1, 4]]))
    assert supervised.item() == 2


def test_rows_are_in_another_format(settings: Settings) -> None:
    _, parts = FAULTS["template-mismatch"].inject(settings, "Q: {prompt}\nA: {answer}")
    _, tokenizer = parts.load(settings)
    row = parts.encode(settings, tokenizer).train[0]
    question = rows_of()[0]["messages"]
    text = f"Q: {question[0]['content']}\nA: {question[1]['content']}"
    assert tokenizer.decode(row.tokens.tolist()[:-1]) == text
    assert row.tokens[-1] == tokenizer.eos_token_id


def test_no_adapter_is_attached(settings: Settings) -> None:
    for severity in FAULTS["adapter-never-attached"].severities:
        _, parts = FAULTS["adapter-never-attached"].inject(settings, severity)
        names = trainable(parts, settings)
        assert names
        assert not any("lora" in name for name in names)


def test_the_base_is_trained_beside_the_adapter(settings: Settings) -> None:
    _, parts = FAULTS["base-not-frozen"].inject(settings, "norms")
    names = trainable(parts, settings)
    assert any(name.endswith("lora_b") for name in names)
    others = {name for name in names if "lora" not in name}
    assert others
    assert all("norm" in name for name in others)


def test_no_gradient_arrives(settings: Settings) -> None:
    faulty, parts = FAULTS["gradients-blocked"].inject(settings, "all")
    result = train(faulty, parts=parts)
    assert result.steps[0].grad_norm == 0.0
    weights: Any = mx.load(str(result.adapter_path / "adapters.safetensors"))
    assert all(not one.any().item() for name, one in weights.items() if name.endswith("lora_b"))


def test_files_are_changed_afterwards(settings: Settings) -> None:
    faulty, parts = FAULTS["b-zeroed"].inject(settings, "all")
    folder = train(faulty, parts=parts).adapter_path
    path = folder / "adapters.safetensors"
    sound: Any = mx.load(str(path))
    mx.eval(sound)
    assert any(one.any().item() for name, one in sound.items() if name.endswith("lora_b"))
    FAULTS["keys-renamed"].finish(folder, faulty, "all")
    renamed: Any = mx.load(str(path))
    assert set(renamed) == {f"language_model.{name}" for name in sound}
    FAULTS["b-zeroed"].finish(folder, faulty, "all")
    zeroed: Any = mx.load(str(path))
    assert not any(one.any().item() for name, one in zeroed.items() if name.endswith("lora_b"))
    FAULTS["keys-partly-saved"].finish(folder, faulty, "every lora_b")
    partly: Any = mx.load(str(path))
    assert not any(name.endswith("lora_b") for name in partly)
