"""Seed 002's criteria, on the fixture base and fifty rows of geography."""

from dataclasses import replace
from typing import Any

import pytest
from mlx_lm import batch_generate, load

from fixtures.lab.cases.workshop import rows_of, write_rows
from mlxdoctor.twin import train
from mlxdoctor.twin.prepared import parts_of
from tests.conftest import FIXTURES
from tests.reproduce.real import settings as settings_of

pytestmark = pytest.mark.slow

ROWS, BATCH = 50, 2
#: The loss is below 2 long before; to answer by heart, this small a model needs more.
EPOCHS = 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any]:
    """The result, the model in memory, and its tokenizer."""
    folder = tmp_path_factory.mktemp("geography")
    write_rows(folder, train=rows_of()[:ROWS])
    iters = EPOCHS * ROWS // BATCH
    settings = settings_of(
        folder / "adapters",
        data=str(folder),
        iters=iters,
        batch_size=BATCH,
        num_layers=4,
        mask_prompt=True,
        lr_schedule={"name": "cosine_decay", "arguments": [1e-3, iters, 5e-5], "warmup": 5},
        optimizer_config={"adam": {"bias_correction": True}},
        mlxdoctor={"grad_clip": 1.0},
    )
    parts = parts_of(settings)
    model, tokenizer = parts.load(settings)
    result = train(settings, parts=replace(parts, load=lambda _: (model, tokenizer)))
    return result, model, tokenizer


def answers(model: Any, tokenizer: Any, rows: list[list[dict[str, str]]]) -> list[str]:
    prompts = [tokenizer.apply_chat_template(row[:1], add_generation_prompt=True) for row in rows]
    texts: list[str] = batch_generate(model, tokenizer, prompts, max_tokens=60).texts
    return [text.strip() for text in texts]


def test_the_loss_falls_from_above_5_to_below_2_within_5_epochs(trained: Any) -> None:
    steps = trained[0].steps
    assert trained[0].stopped is None
    assert steps[0].train_loss > 5
    fifth = steps[4 * ROWS // BATCH : 5 * ROWS // BATCH]
    assert len(fifth) == ROWS // BATCH
    assert max(step.train_loss for step in fifth) < 2


def test_at_least_80_percent_of_the_trained_questions_are_answered(trained: Any) -> None:
    _, model, tokenizer = trained
    rows = [row["messages"] for row in rows_of()[:ROWS]]
    wanted = [row[1]["content"] for row in rows]
    untouched, _ = load(str(FIXTURES / "base"))
    before = answers(untouched, tokenizer, rows)
    after = answers(model, tokenizer, rows)
    assert sum(map(str.__eq__, before, wanted)) <= 0.1 * ROWS
    assert sum(map(str.__eq__, after, wanted)) >= 0.8 * ROWS
