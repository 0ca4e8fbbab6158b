"""Answers produced with a model, and losses measured with it, on the fixtures."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models import generations
from mlxdoctor.models import load as models
from mlxdoctor.models.forward import answer
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.load import load_weights
from mlxdoctor.models.losses import Meter, TokenLosses
from mlxdoctor.models.prompts import Prompt, prompts_for
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES, RUNS
from tests.twin.small import small_model

pytestmark = pytest.mark.slow

ADAPTER = RUNS / "healthy-ordinary" / "adapters.safetensors"
BASE = BaseModel.read(FIXTURES / "base")
TOKENIZER = Tokenizer.read(BASE.path)
DATASET = Dataset.read(FIXTURES / "data" / "geography")


@pytest.fixture(scope="module")
def splits() -> list[SupervisedRows]:
    config = TrainingConfig.read(RUNS / "healthy-ordinary" / "adapter_config.json")
    return [build(DATASET, TOKENIZER, config, split=s) for s in ("train", "valid")]


@pytest.fixture(scope="module")
def measured(splits: list[SupervisedRows]) -> TokenLosses:
    return Meter(models.load(BASE, ADAPTER), TOKENIZER).measure(splits, 16, other_padding=True)


def test_prompts_come_from_the_data_and_a_few_do_not() -> None:
    prompts = prompts_for(DATASET, TOKENIZER, held_out=4, trained=2)
    assert [one.origin for one in prompts] == ["valid"] * 4 + ["train"] * 2 + ["general"] * 6
    assert len({one.text for one in prompts}) == 12
    row = DATASET.splits["valid"].rows[0]["messages"]
    assert (prompts[0].text, prompts[0].expected) == (row[0]["content"], row[1]["content"])
    rendered = TOKENIZER.apply_chat_template(row[:1], add_generation_prompt=True)
    assert list(prompts[0].tokens) == rendered


def test_text_rows_are_continued(tmp_path: Path) -> None:
    """Up to the answer where they have one."""
    text = Dataset.read(FIXTURES / "data" / "geography-text")
    prompt = prompts_for(text, TOKENIZER, held_out=1, trained=0)[0]
    before, mark, answered = text.splits["valid"].rows[0]["text"].partition("assistant\n")
    assert list(prompt.tokens) == TOKENIZER.encode(before + mark.rstrip())
    assert prompt.expected == answered.strip()
    (tmp_path / "valid.jsonl").write_text(json.dumps({"text": answered}) + "\n")
    plain = prompts_for(Dataset.read(tmp_path), TOKENIZER, held_out=1, trained=0)[0]
    whole = TOKENIZER.encode(answered)
    assert list(plain.tokens) == whole[: len(whole) // 2]
    assert plain.expected is None


def test_produced_answers_are_those_that_mlx_lm_recorded() -> None:
    recorded = Generations.read(RUNS / "healthy-ordinary" / "generations.jsonl")
    prompts = prompts_for(DATASET, TOKENIZER, held_out=len(recorded.items), trained=0)
    counts: list[tuple[str, int, int]] = []
    start = time.process_time()
    produced = generations.produce(
        models.load(BASE, ADAPTER),
        TOKENIZER,
        prompts,
        progress=lambda *state: counts.append(state),
    )
    assert time.process_time() - start < 10
    by_prompt = {one.prompt: one for one in produced.items}
    same = [by_prompt[one.prompt] for one in recorded.items if one.prompt in by_prompt]
    assert len(same) == len(recorded.items)
    for one, other in zip(recorded.items, same, strict=True):
        assert (other.base_tokens, other.tuned_tokens) == (one.base_tokens, one.tuned_tokens)
        assert (other.base, other.tuned, other.expected) == (one.base, one.tuned, one.expected)
    assert counts[-1] == ("generating with the tuned model", len(prompts), len(prompts))
    assert produced.how == "produced"


def test_batches_and_single_prompts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_lm.models.cache import KVCache

    model = models.load(BASE).select("base")
    prompts = prompts_for(DATASET, TOKENIZER, held_out=6, trained=0)
    ends = TOKENIZER.eos_token_ids
    batched = answer(model, prompts, ends, 24)
    # Models with caches that cannot be merged are generated from one by one.
    monkeypatch.delattr(KVCache, "merge")
    single = answer(model, prompts, ends, 24)
    assert single == batched


@pytest.mark.parametrize(
    "path",
    [
        ADAPTER,
        ADAPTER.parent,
        ADAPTER.parent / "0000300_adapters.safetensors",
        # Whole weights replace the base's.
        RUNS / "adapter-never-attached" / "adapters.safetensors",
    ],
)
def test_the_base_model_is_untouched_by_what_is_put_on_it(path: Path) -> None:
    tokens = mx.array([[5, 6, 7, 8]])
    alone = np.array(models.load(BASE).select("base")(tokens))
    loaded = models.load(BASE, path)
    assert (loaded.load_failure, loaded.names) == (None, ("base", "tuned"))
    tuned = np.array(loaded.select("tuned")(tokens))
    assert np.array_equal(np.array(loaded.select("base")(tokens)), alone)
    assert not np.array_equal(tuned, alone)
    assert np.array_equal(np.array(loaded.select("tuned")(tokens)), tuned)


def test_a_tuned_model_folder_is_loaded_beside_the_base(tmp_path: Path) -> None:
    loaded = models.load(BASE, copied_base(tmp_path / "fused"))
    assert "tuned" in loaded.names
    assert loaded.select("tuned") is not loaded.select("base")


def test_a_refused_adapter_is_evidence(splits: list[SupervisedRows]) -> None:
    loaded = models.load(BASE, RUNS / "adapter-not-loaded" / "adapters.safetensors")
    assert "not an adapter parameter" in loaded.load_failure
    assert "more like it" in loaded.load_failure
    assert "Adapter at adapters.safetensors" in loaded.load_failure
    produced = generations.produce(loaded, TOKENIZER, prompts_for(None, TOKENIZER))
    assert (produced.items, produced.load_failure) == ((), loaded.load_failure)
    losses = Meter(loaded, TOKENIZER).measure(splits[:1], max_rows=8)
    assert losses.load_failure == loaded.load_failure
    assert all(row.tuned is None for row in losses.rows)


def test_models_that_are_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a local model folder"):
        models.load(replace(BASE, path=tmp_path / "org" / "name"))
    strange = copied_base(tmp_path / "strange", config={"model_type": "../x"})
    with pytest.raises(InputError, match="unusable model_type"):
        models.load(BaseModel.read(strange))


def test_measured_losses_are_mlx_lms(measured: TokenLosses, splits: list[SupervisedRows]) -> None:
    from mlx import nn

    assert len(measured.split("train")) == len(measured.split("valid")) == 16
    assert measured.vocab_size == 768
    assert all(row.tuned is not None for row in measured.rows)
    model = models.load(BASE).select("base")
    for row in measured.rows[:3]:
        logits = model(mx.array(row.tokens)[None])[0]
        expected = nn.losses.cross_entropy(logits[:-1], mx.array(row.tokens)[1:])
        np.testing.assert_allclose(row.base.next, np.array(expected), atol=2e-4)
        identity = nn.losses.cross_entropy(logits, mx.array(row.tokens))
        np.testing.assert_allclose(row.base.shifted[0], np.array(identity), atol=2e-4)
        skip = nn.losses.cross_entropy(logits[:-2], mx.array(row.tokens)[2:])
        np.testing.assert_allclose(row.base.shifted[2], np.array(skip), atol=2e-4)


def test_end_and_padding_are_measured_where_they_belong(measured: TokenLosses) -> None:
    model = models.load(BASE).select("base")
    row = measured.rows[0]
    end = TOKENIZER.eos_token_id
    place = int(np.flatnonzero(row.tokens == end)[-1])
    padded = mx.array([*row.tokens.tolist(), 0, 0])[None]
    logits = np.array(model(padded)[0], np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert row.base.end_after_answer == pytest.approx(-log_p[place - 1, end], abs=1e-3)
    n = len(row.tokens)
    assert row.base.padding[0][0] == pytest.approx(-log_p[n - 1, 0], abs=1e-3)
    assert row.base.padding[0][1] == pytest.approx(-log_p[n, 0], abs=1e-3)


def test_an_end_token_that_the_model_does_not_have_is_never_expected(
    splits: list[SupervisedRows],
) -> None:
    without = replace(BASE, config={**BASE.config, "eos_token_id": 1_000_000})
    strange = replace(TOKENIZER, eos_token_ids=(1_000_000,))
    found = Meter(models.load(without), strange).measure(splits[:1], max_rows=2)
    assert all(np.isinf(row.base.end_after_answer) for row in found.rows)


def test_more_layers_than_weights_are_refused(tmp_path: Path) -> None:
    """A model is built before its weights are looked at: so many layers take all memory."""
    folder = copied_base(tmp_path / "base", config={"num_hidden_layers": 20_000_000})
    with pytest.raises(InputError, match="says 20,000,000 layers, and weights of 4"):
        load_weights(folder)


def test_what_cannot_be_asked_is_refused(splits: list[SupervisedRows]) -> None:
    loaded, row = models.load(BASE), splits[0].rows[0]
    # MLX would read the memory behind the embeddings.
    with pytest.raises(ValueError, match="token 999 is outside the vocabulary of 768"):
        answer(loaded.select("base"), [Prompt("strange", (5, 999), None, "train")], (0,), 4)
    alien = replace(row, tokens=np.full_like(row.tokens, 999))
    for changes, problem in (
        ({"rows": (alien,)}, "token 999 is outside the vocabulary"),
        ({"rows": ()}, "no row to measure"),
        (
            {"rows": (), "refused": {0: "its text is empty"}},
            "no row of the data can be measured: its text is empty",
        ),
    ):
        with pytest.raises(InputError, match=problem):
            Meter(loaded, TOKENIZER).measure([replace(splits[0], **changes)], 8)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16.0}),
        ("gpt_bigcode", {"n_embd": 32, "n_layer": 2, "n_inner": 64, "n_head": 2}),
    ],
)
def test_a_family_that_mlx_lm_does_not_batch_answers_one_by_one(
    family: str, sizes: dict[str, Any]
) -> None:
    more = {"n_positions": 64, "layer_norm_epsilon": 1e-5}
    model = small_model(0, kind=family, hidden_size=32, **more, **sizes)
    prompts = [Prompt("", (1, 2, 3)), Prompt("", (4, 5, 6, 7))]
    answers = answer(model, prompts, (), max_tokens=4)
    for prompt, found in zip(prompts, answers, strict=True):
        steps = generate_step(mx.array(prompt.tokens), model, max_tokens=4)
        assert list(found) == [int(token) for token, _ in steps]
