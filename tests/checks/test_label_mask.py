"""What the supervised tokens of real rows can and can't teach."""

from __future__ import annotations

import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from tests.checks.data_evidence import (
    DATA,
    chat,
    config_of,
    log_of,
    model_copy,
    rows_of,
    run,
    write_data,
)
from tests.conftest import check_called

label_mask = check_called("label-mask")


QUESTION = "Which lake is the largest in Dedunia?"
ANSWER = "Lake Nevath, cold, deep and clear."
BOUNDARY = {"label-mask.pad-target": "info"}


@pytest.fixture
def geography():
    return Dataset.read(DATA / "geography")


def test_missing_evidence_is_skipped():
    outcome, _ = run(label_mask)
    assert outcome.status.value == "skipped"


def test_a_sound_masked_run_has_only_the_upstream_note(tmp_path, geography):
    config = config_of(tmp_path, mask_prompt=True)
    _, codes = run(label_mask, rows_of(geography, config), config)
    assert codes == BOUNDARY


def test_an_unmasked_run_is_told_so(geography):
    outcome, codes = run(label_mask, rows_of(geography))
    assert codes == {**BOUNDARY, "label-mask.prompt-supervised": "info"}
    finding = next(one for one in outcome.findings if one.code.endswith("prompt-supervised"))
    assert 0.2 < finding.measured["share"] < 0.6
    assert "by default" in finding.message


@pytest.fixture
def with_a_long_prompt(tmp_path):
    rows = [chat(QUESTION, ANSWER) for _ in range(8)]
    rows[2] = rows[3] = chat("Which? " * 40, ANSWER)
    return write_data(tmp_path, train=rows)


def test_a_batch_without_targets_is_an_error(tmp_path, with_a_long_prompt):
    config = config_of(tmp_path, mask_prompt=True, batch_size=2, max_seq_length=64)
    outcome, codes = run(label_mask, rows_of(with_a_long_prompt, config), config)
    assert codes["label-mask.empty-batch"] == "error"
    assert codes["label-mask.no-supervised-tokens"] == "warning"
    empty = next(one for one in outcome.findings if one.code == "label-mask.empty-batch")
    assert empty.measured["empty_batches"] == 1
    assert empty.measured["probability_of_meeting_one"] == 1.0
    assert empty.where == "row 3 of train"


def test_in_other_batches_the_same_rows_are_a_warning(tmp_path, with_a_long_prompt):
    config = config_of(tmp_path, mask_prompt=True, batch_size=4, max_seq_length=64)
    _, codes = run(label_mask, rows_of(with_a_long_prompt, config), config)
    assert "label-mask.empty-batch" not in codes
    assert codes["label-mask.no-supervised-tokens"] == "warning"


def test_a_short_run_may_miss_the_empty_batch(tmp_path, with_a_long_prompt):
    config = config_of(tmp_path, mask_prompt=True, batch_size=2, max_seq_length=64, iters=1)
    outcome, codes = run(label_mask, rows_of(with_a_long_prompt, config), config)
    assert codes["label-mask.empty-batch"] == "warning"
    empty = next(one for one in outcome.findings if one.code == "label-mask.empty-batch")
    assert empty.measured["probability_of_meeting_one"] == pytest.approx(0.25)


def test_a_log_that_stayed_finite_survived_it(tmp_path, with_a_long_prompt):
    config = config_of(tmp_path, mask_prompt=True, batch_size=2, max_seq_length=64)
    rows = rows_of(with_a_long_prompt, config)
    finite = log_of(train_loss=([10, 20], [2.0, 1.0]))
    broken = log_of(train_loss=([10, 20], [2.0, float("nan")]))
    assert run(label_mask, rows, config, finite)[1]["label-mask.empty-batch"] == "warning"
    assert run(label_mask, rows, config, broken)[1]["label-mask.empty-batch"] == "error"


def test_all_rows_masked_away(tmp_path, geography):
    config = config_of(tmp_path, mask_prompt=True, max_seq_length=12)
    _, codes = run(label_mask, rows_of(geography, config), config)
    assert codes["label-mask.no-supervised-tokens"] == "error"


@pytest.mark.parametrize(("long_rows", "severity"), [(1, None), (3, "warning"), (60, "error")])
def test_truncation_grows_with_the_share(tmp_path, long_rows, severity):
    rows = [chat(QUESTION, ANSWER)] * 100
    rows[:long_rows] = [chat(QUESTION, ANSWER * 20)] * long_rows
    config = config_of(tmp_path, mask_prompt=True, max_seq_length=128)
    _, codes = run(label_mask, rows_of(write_data(tmp_path, train=rows), config), config)
    assert codes.get("label-mask.answers-truncated") == severity


def test_long_texts_may_be_cut(tmp_path):
    data = write_data(tmp_path, train=[{"text": ANSWER * 30}] * 8)
    config = config_of(tmp_path, max_seq_length=64)
    _, codes = run(label_mask, rows_of(data, config), config)
    assert codes["label-mask.answers-truncated"] == "warning"
    assert "label-mask.end-token-missing" not in codes


def test_a_template_without_end_token(tmp_path, geography):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    model = model_copy(tmp_path, template)
    rows = rows_of(geography, model=model)
    outcome, codes = run(label_mask, rows, Tokenizer.read(model))
    assert codes["label-mask.end-token-missing"] == "error"
    assert "<|im_end|>" in outcome.findings[0].message


def test_half_of_the_rows_without_an_end(tmp_path):
    tokens = [{"tokens": [5, 6, 7, 767]}] * 4 + [{"tokens": [5, 6, 7, 8]}] * 4
    _, codes = run(label_mask, rows_of(write_data(tmp_path, train=tokens)))
    assert codes["label-mask.end-token-missing"] == "warning"
    _, codes = run(label_mask, rows_of(write_data(tmp_path, train=tokens[:4] * 2)))
    assert "label-mask.end-token-missing" not in codes


def test_a_prompt_that_is_no_prefix_matters_only_when_masked(tmp_path, geography):
    model = model_copy(
        tmp_path,
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
    )
    masked = config_of(tmp_path, mask_prompt=True)
    _, codes = run(label_mask, rows_of(geography, masked, model), masked)
    assert codes["label-mask.offset-not-a-prefix"] == "warning"
    _, codes = run(label_mask, rows_of(geography, model=model))
    assert "label-mask.offset-not-a-prefix" not in codes


def test_a_doubled_beginning(tmp_path):
    model = model_copy(tmp_path, bos_token="<|im_start|>")
    once = write_data(tmp_path, train=[{"text": f"<|im_start|>{ANSWER}"}] * 4)
    tokenizer = Tokenizer.read(model)
    assert "label-mask.double-bos" not in run(label_mask, rows_of(once, model=model), tokenizer)[1]
    twice = write_data(tmp_path, train=[{"text": f"<|im_start|><|im_start|>{ANSWER}"}] * 4)
    _, codes = run(label_mask, rows_of(twice, model=model), tokenizer)
    assert codes["label-mask.double-bos"] == "warning"


def test_earlier_answers_are_masked(tmp_path):
    row = chat(QUESTION, ANSWER)
    data = write_data(tmp_path, train=[{"messages": row["messages"] * 2}] * 4)
    masked = config_of(tmp_path, mask_prompt=True)
    _, codes = run(label_mask, rows_of(data, masked), masked)
    assert codes["label-mask.earlier-answers-masked"] == "info"
    assert "label-mask.earlier-answers-masked" not in run(label_mask, rows_of(data))[1]


def test_rows_that_cannot_be_tokenized_are_inconclusive(tmp_path):
    data = write_data(tmp_path, train=[{"messages": []}] * 4)
    outcome, _ = run(label_mask, rows_of(data))
    assert outcome.status.value == "inconclusive"
