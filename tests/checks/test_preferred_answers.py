"""Margins of pairs, of an adapter that was trained on them by DPO."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

from fixtures.trainers.common import padded
from mlxdoctor.api import diagnose
from mlxdoctor.models.preference_margins import PreferenceMargins
from tests.conftest import FIXTURES, check_called
from tests.given import outcome
from tests.probe.test_preferences import dpo

BASE = FIXTURES / "base"
LORA = {"rank": 8, "scale": 10.0, "dropout": 0.0}
preferred_answers = check_called("preferred-answers")


def margins(**gains: list[float]) -> PreferenceMargins:
    return PreferenceMargins((), {name: np.array(each) for name, each in gains.items()})


@pytest.mark.parametrize(
    ("train", "valid", "code"),
    [
        (1.0, 1.0, None),
        (1.0, -1.0, "preferred-answers.held-out-reversed"),
        (-1.0, -1.0, "preferred-answers.reversed"),
        (-1.0, 1.0, "preferred-answers.reversed"),
        (-1.0, None, "preferred-answers.reversed"),
    ],
)
def test_which_way_the_margins_went(train: float, valid: float | None, code: str | None) -> None:
    splits = {"train": train, "valid": valid}
    gains = {name: [gain] * 14 + [-gain] * 2 for name, gain in splits.items() if gain is not None}
    found = outcome(preferred_answers, margins(**gains))
    assert [finding.code for finding in found.findings] == ([code] if code else [])
    assert [seen.learned for seen in found.seen] == ([] if code else [True])
    # What is shown is what fell.
    assert all(finding.measured["gain"] < 0 for finding in found.findings)


def test_half_of_the_pairs_is_chance_and_a_few_are_too_few() -> None:
    found = outcome(preferred_answers, margins(train=[1.0] * 9 + [-1.0] * 7))
    said = [f"{each.code} {each.severity}" for each in found.findings]
    assert (said, found.seen) == (["preferred-answers.unmoved info"], ())
    assert outcome(preferred_answers, margins(train=[-1.0] * 7)).status == "inconclusive"


def pairs(folder: Path) -> Path:
    """The rows of geography; rejected is the answer of the row before."""
    folder.mkdir()
    for name in ("train", "valid"):
        lines = (FIXTURES / "data" / "geography" / f"{name}.jsonl").read_text().splitlines()
        said = [json.loads(line)["messages"] for line in lines]
        rows = [
            {"prompt": m[0]["content"], "chosen": m[-1]["content"], "rejected": o[-1]["content"]}
            for m, o in zip(said, [said[-1], *said[:-1]], strict=True)
            if m[-1]["content"] != o[-1]["content"]
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def tokens(tokenizer: Any, rows: list[dict[str, str]], answer: str) -> tuple[mx.array, mx.array]:
    """Prompts with these answers, and the mask of the answers."""
    asked = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    said = [{"role": "assistant", "content": row[answer]} for row in rows]
    prompts = [tokenizer.apply_chat_template(each, add_generation_prompt=True) for each in asked]
    whole = [tokenizer.apply_chat_template([*q, a]) for q, a in zip(asked, said, strict=True)]
    mask = [
        [i >= len(prompt) for i in range(len(row))]
        for prompt, row in zip(prompts, whole, strict=True)
    ]
    return padded(whole, 0), padded(mask, False)


def train_on_pairs(run: Path, data: Path, sign: float) -> None:
    """Fifty steps of DPO on four pairs each; a sign of -1 asks for the rejected answers."""
    mx.random.seed(0)
    model, tokenizer = load(str(BASE))  # type: ignore[misc]
    model.freeze()
    linear_to_lora_layers(model, 2, LORA)
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    optimizer = optim.Adam(learning_rate=3e-4)
    for step in range(50):
        some = [rows[(4 * step + each) % len(rows)] for each in range(4)]
        (good, up), (bad, down) = (tokens(tokenizer, some, name) for name in ("chosen", "rejected"))
        _, gradients = nn.value_and_grad(model, dpo(sign=sign))(model, good, bad, up, down)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
    run.mkdir()
    weights = dict(tree_flatten(model.trainable_parameters()))
    mx.save_safetensors(str(run / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": LORA}
    config |= {"model": str(BASE), "data": str(data)}
    (run / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("sign", "code"), [(1.0, None), (-1.0, "preferred-answers.reversed")])
def test_a_run_on_pairs(tmp_path: Path, sign: float, code: str | None) -> None:
    data = pairs(tmp_path / "data")
    train_on_pairs(tmp_path / "run", data, sign)
    report = diagnose(tmp_path / "run", replay=False, budget=30.0)
    (found,) = (each for each in report.outcomes if each.check == "preferred-answers")
    assert [finding.code for finding in found.findings] == ([code] if code else [])
    assert [seen.learned for seen in found.seen] == ([] if code else [True])
    assert (report.root is None) if code is None else report.root.cause.id == "objective-reversed"
