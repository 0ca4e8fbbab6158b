"""Data files that mlx-lm can't read, or reads as something nobody meant."""

import json

import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.safety.reading_limits import using
from tests.checks.data_evidence import (
    BASE,
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
from tests.given import WRITTEN

data_format = check_called("data-format")
ROW = chat("Which lake?", "Lake Nevath.")
LINE = json.dumps(ROW) + "\n"
STARTED = log_of(train_loss=([10], [1.0]))
UNNAMED = [{"question": "a", "answer": "b"}] * 2
FOREIGN = [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]


def checked(*evidence):
    """The outcome, and severities by symptom, but that there is nothing to validate on."""
    outcome, severities = run(data_format, *evidence)
    severities.pop("no-validation-split", None)
    return outcome, severities


@pytest.mark.parametrize("name", ["geography", "geography-text"])
def test_sound_data_pass(name):
    dataset = Dataset.read(DATA / name)
    outcome, codes = checked(dataset, rows_of(dataset))
    assert (codes, outcome.status.value) == ({}, "passed")


@pytest.mark.parametrize("line", ["\n", "{\n", "[1]\n", '"text"\n'])
def test_a_bad_line(tmp_path, line):
    dataset = write_data(tmp_path, train=LINE + line + LINE)
    outcome, codes = checked(dataset)
    assert codes == {"bad-lines": "error"}
    assert outcome.findings[0].where == "train.jsonl, line 2"
    # The run got going, so something read the file.
    assert checked(dataset, STARTED)[1] == {"bad-lines": "warning"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train.json", "[]", "it has train.json, which"),
        ("train.csv", "prompt,completion\n", "it has train.csv, which"),
        ("data/train.jsonl", LINE, "its folder data has one"),
        ("train.jsonl", "[\n" + LINE + "]\n", "line 1 opens a JSON array"),
        ("train.jsonl", LINE.encode("utf-16"), "line 1 is in UTF-16"),
    ],
)
def test_rows_where_mlx_lm_does_not_find_them(tmp_path, name, content, says):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    finding = checked(Dataset.read(tmp_path))[0].findings[0]
    assert says in finding.message
    assert finding.severity.value == "error"


def test_rows_to_test_on_alone_are_no_fault_of_a_run_that_was_made(tmp_path):
    dataset = write_data(tmp_path, test=LINE)
    assert checked(dataset)[1] == {}
    planned = PlannedRun(config_of(tmp_path.parent))
    assert checked(dataset, planned)[1] == {"no-training-file": "error"}


ASKED = {"prompt": "ask", "completion": "b"}


@pytest.mark.parametrize(
    ("rows", "values", "codes"),
    [
        (LINE, {}, {}),
        (LINE.strip(), {}, {}),
        ("", {}, {"no-rows": "error"}),
        (UNNAMED, {}, {"unknown-format": "error"}),
        (UNNAMED, {"prompt_feature": "question", "completion_feature": "answer"}, {}),
        ([{"text": "a"}], {"mask_prompt": False}, {}),
        ([{"text": "a"}], {"mask_prompt": True}, {"mask-needs-messages": "error"}),
        ([ROW, {"text": "a"}, {**ROW, "text": "both"}], {}, {"mixed-formats": "error"}),
        (
            [ROW, {"messages": [{"role": "user"}, *ROW["messages"]]}],
            {},
            {"rows-refused": "error", "empty-prompts": "warning"},
        ),
        ([{"prompt": "a", "completion": ""}], {}, {"empty-answers": "warning"}),
    ],
)
def test_what_mlx_lm_makes_of_rows(tmp_path, rows, values, codes):
    config = config_of(tmp_path, batch_size=1, **values)
    dataset = Dataset.read(write_data(tmp_path, train=rows).path, config)
    has_rows = dataset.splits["train"].format != "unknown"
    assert checked(dataset, config, *([rows_of(dataset, config)] if has_rows else []))[1] == codes


PAIRS = [{"prompt": f"Which lake is {at}?", "chosen": f"Lake {at}."} for at in range(4)]


@pytest.mark.parametrize(
    ("values", "first_loss", "codes"),
    [
        ({}, 5.0, {"pairs": "info"}),
        # mlx-lm stops at such rows: they are not those of its run.
        (WRITTEN, 5.0, {"unknown-format": "warning"}),
        ({"train_mode": "dpo"}, 5.0, {}),
        # The loss of pairs begins at ln 2.
        ({}, 0.70, {}),
        ({}, 0.80, {"pairs": "info"}),
    ],
)
def test_pairs_are_known_to_other_trainers(tmp_path, values, first_loss, codes):
    config = config_of(tmp_path, batch_size=1, **values)
    dataset = write_data(tmp_path, train=PAIRS, valid=PAIRS)
    log = log_of(train_loss=([1], [first_loss]))
    assert checked(dataset, config, log, rows_of(dataset, config))[1] == codes


def test_a_plan_for_mlx_lm_has_no_use_for_pairs(tmp_path):
    dataset, config = write_data(tmp_path, train=PAIRS), config_of(tmp_path, batch_size=1)
    outcome, codes = checked(dataset, config, PlannedRun(config))
    assert codes == {"unknown-format": "error"}
    assert "completion_feature: chosen" in outcome.findings[0].fix


def test_pairs_that_another_trainer_reads_otherwise_are_not_refused(tmp_path):
    dataset = write_data(tmp_path, train=[{"chosen": "Human: a Assistant: b"}] * 2)
    rows = rows_of(dataset)
    assert len(rows.refused) == 2
    assert checked(dataset, rows)[1] == {"pairs": "info"}


LOOP = "{% for n in range(9**5) %}" * 2 + "{{ n }}" + "{% endfor %}" * 2


@pytest.mark.parametrize(
    ("template", "row", "fix"),
    [
        (LOOP, ROW, "repair or remove it"),
        ("{{ raise_exception('no') }}", ROW, "repair or remove it"),
        (
            None,
            {"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            "from -> role and value -> content",
        ),
    ],
)
def test_how_to_repair_a_row_that_is_refused(tmp_path, template, row, fix):
    model = model_copy(tmp_path, template=template)
    dataset = write_data(tmp_path, train=[row] * 2)
    with using(["template_seconds=0.1"]):
        outcome, codes = checked(dataset, rows_of(dataset, model=model), Tokenizer.read(model))
    assert codes == {"rows-refused": "error"}
    assert fix in outcome.findings[0].fix


CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
NARRATOR = [{"role": "narrator", "content": "a"}, ROW["messages"][1]]


@pytest.mark.parametrize(
    ("messages", "code", "fix"),
    [
        ([ROW["messages"][1], {"role": "user", "content": "b"}], "no-answer", "end every"),
        (FOREIGN, "unknown-roles", "rename the roles gpt -> assistant and human -> user"),
        (NARRATOR, "unknown-roles", "use the roles system, user, assistant and tool"),
        ([ROW["messages"][0], {"role": "assistant", "content": " \n"}], "empty-answers", "fill"),
        ([{"role": "user", "content": ""}, ROW["messages"][1]], "empty-prompts", "fill"),
        ([ROW["messages"][0], CALL], None, ""),
    ],
)
def test_odd_conversations(tmp_path, messages, code, fix):
    outcome, codes = checked(write_data(tmp_path, train=[ROW, {"messages": messages}]))
    assert codes == ({code: "warning"} if code else {})
    if code:
        finding = outcome.findings[0]
        assert finding.measured["first_lines"] == (2,)
        assert fix in finding.fix


@pytest.mark.parametrize(
    ("empty", "severity"),
    [(3, "info"), (4, "warning"), (66, "warning"), (70, "error"), (200, "error")],
)
def test_a_share_of_empty_answers(tmp_path, empty, severity):
    """A gap in a column is a note; more than a third of the answers explains a silent model."""
    rows = [chat(f"Question {at}?", "" if at < empty else f"Answer {at}.") for at in range(200)]
    outcome, codes = run(data_format, write_data(tmp_path, train=rows, valid=rows))
    assert codes == {"empty-answers": severity}
    assert f"{empty} of 200 rows have an empty answer" in outcome.findings[0].message


def test_a_model_without_a_template(tmp_path):
    bare = model_copy(tmp_path)
    (bare / "chat_template.jinja").unlink()
    dataset = write_data(tmp_path, train=[ROW] * 3)
    outcome, codes = checked(dataset, rows_of(dataset, model=bare), Tokenizer.read(bare))
    assert codes == {"no-template": "error"}
    assert "instruct version" in outcome.findings[0].fix
    text = write_data(tmp_path, train=[{"text": "a lake"}] * 3)
    assert checked(text, rows_of(text, model=bare), Tokenizer.read(bare))[1] == {}


KNOWS = "{% for m in messages %}{% if m.role in ['human', 'gpt'] %}{{ m.content }}{% endif %}" + (
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("rows", "template", "severity"),
    [
        ([{"messages": FOREIGN}] * 3, None, "error"),
        ([{"messages": FOREIGN}, ROW], None, "warning"),
        ([{"messages": FOREIGN}] * 3, KNOWS, None),
    ],
)
def test_foreign_roles_everywhere_are_an_error_unless_the_template_knows_them(
    tmp_path, rows, template, severity
):
    tokenizer = Tokenizer.read(model_copy(tmp_path, template=template) if template else BASE)
    codes = checked(write_data(tmp_path, train=rows), tokenizer)[1]
    assert codes.get("unknown-roles") == severity


@pytest.mark.parametrize(
    ("series", "severity"),
    [
        ({}, "info"),
        ({"train_loss": ([10, 20], [2.0, 1.0])}, "warning"),
        # It validated on rows that are not here.
        ({"train_loss": ([10, 20], [2.0, 1.0]), "val_loss": ([1, 20], [3.0, 1.0])}, "info"),
        ({"rewards": ([10, 20], [0.1, 0.2]), "train_loss": ([10, 20], [0.7, 0.6])}, "info"),
        ({"grad_norm": ([10], [1.0])}, "info"),
    ],
)
def test_no_split(tmp_path, series, severity):
    dataset = write_data(tmp_path, train=[ROW])
    evidence = (dataset, log_of(**series)) if series else (dataset,)
    assert run(data_format, *evidence)[1] == {"no-validation-split": severity}
    # A single file says nothing of the others.
    assert run(data_format, Dataset.read(dataset.path / "train.jsonl"))[1] == {}


@pytest.mark.parametrize(("rows", "code"), [(60, "met-once"), (20, "no-validation-split")])
def test_rows_that_were_met_once_need_no_split(tmp_path, rows, code):
    dataset = write_data(tmp_path, train=[ROW] * rows)
    log = log_of(train_loss=([10, 20], [2.0, 1.0]))
    assert code in run(data_format, dataset, config_of(tmp_path, batch_size=4), log)[1]


@pytest.mark.parametrize(
    ("count", "values", "loss", "severity"),
    [
        (3, {"batch_size": 4}, None, "error"),
        (3, {"batch_size": 4}, float("nan"), "error"),
        # The log shows that it worked.
        (3, {"batch_size": 4}, 1.5, None),
        (4, {"batch_size": 4}, None, None),
        (8, {"val_batches": 0}, None, "warning"),
        (8, {"val_batches": 1}, None, None),
    ],
)
def test_no_batch_to_validate_on(tmp_path, count, values, loss, severity):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * count)
    evidence = [dataset, config_of(tmp_path, **values)]
    evidence += [log_of(val_loss=([1], [loss]))] if loss is not None else []
    assert checked(*evidence)[1].get("no-validation-batches") == severity
