"""What the supervised tokens of real rows can and can't teach."""

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
ROW, LONG = chat(QUESTION, ANSWER), chat(QUESTION, ANSWER * 20)
#: Two of eight rows have a prompt beyond the limit: a batch of two has nothing to learn.
LONG_PROMPT = [ROW] * 2 + [chat("Which? " * 40, ANSWER)] * 2 + [ROW] * 4
CUT = {"mask_prompt": True, "max_seq_length": 64}
FINITE = log_of(train_loss=([10, 20], [2.0, 1.0]))
BROKEN = log_of(train_loss=([10, 20], [2.0, float("nan")]))
GEOGRAPHY = Dataset.read(DATA / "geography")
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SOME_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% if 'No end' not in m.content %}<|im_end|>{% endif %}{% endfor %}"
)
NO_PREFIX = "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"


def tell(rows, *evidence):
    """The outcome, and severities by symptom, but mlx-lm's own padding target."""
    outcome, severities = run(label_mask, rows, *evidence)
    severities.pop("pad-target", None)
    return outcome, severities


def test_a_sound_run_has_only_notes(tmp_path):
    config = config_of(tmp_path, mask_prompt=True)
    _, codes = run(label_mask, rows_of(GEOGRAPHY, config), config)
    assert codes == {"pad-target": "info"}
    outcome, codes = tell(rows_of(GEOGRAPHY))
    assert codes == {"prompt-supervised": "info"}
    assert 0.2 < outcome.findings[0].measured["share"] < 0.6
    assert any("by default" in finding.message for finding in outcome.findings)
    refused = rows_of(write_data(tmp_path, train=[{"messages": []}] * 4))
    assert run(label_mask, refused)[0].status.value == "inconclusive"


@pytest.mark.parametrize(
    ("values", "log", "severity", "chance"),
    [
        ({"batch_size": 2}, None, "error", 1.0),
        # A short run may miss it, and a log that stayed finite survived it.
        ({"batch_size": 2, "iters": 1}, None, "warning", 0.25),
        ({"batch_size": 2}, FINITE, "warning", 1.0),
        ({"batch_size": 2}, BROKEN, "error", 1.0),
        ({"batch_size": 4}, None, None, None),
    ],
)
def test_a_batch_without_targets(tmp_path, values, log, severity, chance):
    config = config_of(tmp_path, **CUT, **values)
    rows = rows_of(write_data(tmp_path, train=LONG_PROMPT), config)
    outcome, codes = tell(rows, config, *([log] if log else []))
    assert codes["no-supervised-tokens"] == "warning"
    assert codes.get("empty-batch") == severity
    if severity:
        empty = next(one for one in outcome.findings if one.code == "label-mask.empty-batch")
        assert empty.measured["empty_batches"] == 1
        assert empty.measured["probability_of_meeting_one"] == pytest.approx(chance)
        assert empty.where == "row 3 of train"


TWO_ANSWERS = {"messages": ROW["messages"] * 2}


@pytest.mark.parametrize(
    ("rows", "values", "symptom", "severity"),
    [
        ([ROW] * 8, {"mask_prompt": True, "max_seq_length": 12}, "no-supervised-tokens", "error"),
        ([ROW] * 99 + [LONG], {**CUT, "max_seq_length": 128}, "answers-truncated", None),
        ([ROW] * 97 + [LONG] * 3, {**CUT, "max_seq_length": 128}, "answers-truncated", "warning"),
        ([ROW] * 40 + [LONG] * 60, {**CUT, "max_seq_length": 128}, "answers-truncated", "error"),
        # Long texts may be cut.
        ([{"text": ANSWER * 30}] * 8, {"max_seq_length": 64}, "answers-truncated", "warning"),
        ([{"text": ANSWER * 30}] * 8, {"max_seq_length": 64}, "end-token-missing", None),
        ([TWO_ANSWERS] * 4, {"mask_prompt": True}, "earlier-answers-masked", "info"),
        ([TWO_ANSWERS] * 4, {}, "earlier-answers-masked", None),
    ],
)
def test_what_rows_lack(tmp_path, rows, values, symptom, severity):
    config = config_of(tmp_path, **values)
    rows = rows_of(write_data(tmp_path, train=rows), config)
    assert tell(rows, config)[1].get(symptom) == severity


@pytest.mark.parametrize(("unended", "severity"), [(4, "warning"), (3, None)])
def test_some_rows_without_an_end_token(tmp_path, unended, severity):
    rows = [ROW] * (8 - unended) + [chat(QUESTION, "No end.")] * unended
    model = model_copy(tmp_path, SOME_END)
    config = config_of(tmp_path)
    rows = rows_of(write_data(tmp_path, train=rows), config, model)
    assert tell(rows, config)[1].get("end-token-missing") == severity


@pytest.mark.parametrize(
    ("template", "settings", "rows", "values", "symptom", "severity"),
    [
        (NO_END, {}, None, {}, "end-token-missing", "error"),
        (NO_PREFIX, {}, None, {"mask_prompt": True}, "offset-not-a-prefix", "warning"),
        (NO_PREFIX, {}, None, {}, "offset-not-a-prefix", None),
        (None, {"bos_token": "<|im_start|>"}, "<|im_start|>", {}, "double-bos", None),
        (None, {"bos_token": "<|im_start|>"}, "<|im_start|>" * 2, {}, "double-bos", "warning"),
    ],
)
def test_what_templates_do(*, tmp_path, template, settings, rows, values, symptom, severity):
    model = model_copy(tmp_path, template, **settings)
    data = write_data(tmp_path, train=[{"text": rows + ANSWER}] * 4) if rows else GEOGRAPHY
    config = config_of(tmp_path, **values)
    outcome, codes = tell(rows_of(data, config, model), config, Tokenizer.read(model))
    assert codes.get(symptom) == severity
    if template == NO_END:
        assert "<|im_end|>" in outcome.findings[0].message
