"""Data files that mlx-lm can't read, or reads as something nobody meant."""

from __future__ import annotations

import json

import pytest

from mlxdoctor.evidence.dataset import Dataset
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

data_format = check_called("data-format")


def checked(*evidence):
    """The outcome, and its severities by code, but that there is nothing to validate on."""
    outcome, codes = run(data_format, *evidence)
    codes.pop("data-format.no-validation-split", None)
    return outcome, codes


ROW = chat("Which lake?", "Lake Nevath.")
LINE = json.dumps(ROW) + "\n"
STARTED = log_of(train_loss=([10], [1.0]))


@pytest.mark.parametrize("name", ["geography", "geography-text", "geography-tiny"])
def test_sound_data_pass(name):
    dataset = Dataset.read(DATA / name)
    outcome, codes = checked(dataset, rows_of(dataset))
    assert codes == {}
    assert outcome.status.value == "passed"


def test_missing_evidence_is_skipped():
    assert checked()[0].status.value == "skipped"


@pytest.mark.parametrize("line", ["\n", "{\n", "[1]\n", '"text"\n'])
def test_a_bad_line(tmp_path, line):
    dataset = write_data(tmp_path, train=LINE + line + LINE)
    outcome, codes = checked(dataset)
    assert codes == {"data-format.bad-lines": "error"}
    assert outcome.findings[0].where == "train.jsonl, line 2"
    # The run got going, so something read the file.
    assert checked(dataset, STARTED)[1] == {"data-format.bad-lines": "warning"}


def test_a_final_newline_is_no_bad_line(tmp_path):
    assert checked(write_data(tmp_path, train=LINE))[1] == {}
    assert checked(write_data(tmp_path, train=LINE.strip()))[1] == {}


def test_an_empty_file(tmp_path):
    dataset = write_data(tmp_path, train="", valid=[ROW])
    assert checked(dataset)[1] == {"data-format.no-rows": "error"}


def test_unknown_keys_unless_they_are_configured(tmp_path):
    dataset = write_data(tmp_path, train=[{"question": "a", "answer": "b"}] * 2)
    assert checked(dataset)[1] == {"data-format.unknown-format": "error"}
    config = config_of(tmp_path, prompt_feature="question", completion_feature="answer")
    assert checked(Dataset.read(dataset.path, config), config)[1] == {}


def test_a_row_in_another_format(tmp_path):
    rows = [ROW, {"text": "a"}, {**ROW, "text": "both is fine"}]
    dataset = write_data(tmp_path, train=rows)
    outcome, codes = checked(dataset, rows_of(dataset, config_of(tmp_path, batch_size=1)))
    assert codes == {"data-format.mixed-formats": "error"}
    assert outcome.findings[0].measured["first_lines"] == (2,)


def test_a_row_the_template_refuses(tmp_path):
    rows = [ROW, {"messages": [{"role": "user"}, *ROW["messages"]]}]
    dataset = write_data(tmp_path, train=rows)
    _, codes = checked(dataset, rows_of(dataset, config_of(tmp_path, batch_size=1)))
    assert codes["data-format.rows-refused"] == "error"


def test_a_template_that_finishes_no_row_and_one_that_finishes_some(tmp_path):
    loop = "{% for n in range(9**5) %}" * 2 + "{{ n }}" + "{% endfor %}" * 2
    for name, template, rows, is_for_all in (
        ("endless", loop, [ROW], True),
        (
            "long",
            "{% if messages[0].content == 'x' %}" + loop + "{% endif %}",
            [ROW, chat("x", "y")],
            False,
        ),
    ):
        model = model_copy(tmp_path / name, template=template)
        dataset = write_data(tmp_path, train=rows)
        with using(["template_seconds=0.1"]):
            seen = rows_of(dataset, config_of(tmp_path, batch_size=1), model=model)
            outcome, _ = checked(dataset, seen)
        found = {one.code: one.fix for one in outcome.findings}["data-format.rows-refused"]
        assert ("the chat template with the one that came with" in found) == is_for_all


def test_a_mask_on_plain_text(tmp_path):
    dataset = write_data(tmp_path, train=[{"text": "a"}])
    masked, plain = config_of(tmp_path, mask_prompt=True), config_of(tmp_path, mask_prompt=False)
    assert checked(dataset, plain)[1] == {}
    masked = config_of(tmp_path, mask_prompt=True)
    assert checked(dataset, masked)[1] == {"data-format.mask-needs-messages": "error"}


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}], "no-answer"),
        ([{"role": "human", "content": "a"}, ROW["messages"][1]], "unknown-roles"),
        ([ROW["messages"][0], {"role": "assistant", "content": " \n"}], "empty-answers"),
        ([{"role": "user", "content": ""}, ROW["messages"][1]], "empty-prompts"),
    ],
)
def test_odd_conversations(tmp_path, messages, code):
    dataset = write_data(tmp_path, train=[ROW, {"messages": messages}])
    outcome, codes = checked(dataset)
    assert codes == {f"data-format.{code}": "warning"}
    assert outcome.findings[0].measured["first_lines"] == (2,)


@pytest.mark.parametrize(
    ("empty", "severity"),
    [
        (1, "info"),
        (3, "info"),
        (4, "warning"),
        (66, "warning"),
        (70, "error"),
        (200, "error"),
    ],
)
def test_a_share_of_empty_answers(tmp_path, empty, severity):
    """A gap in a column is a note; more than a third of the answers explains a silent model."""
    rows = [chat(f"Question {at}?", "" if at < empty else f"Answer {at}.") for at in range(200)]
    outcome, codes = checked(write_data(tmp_path, train=rows))
    assert codes == {"data-format.empty-answers": severity}
    messages = " ".join(finding.message for finding in outcome.findings)
    assert f"{empty} of 200 rows have an empty answer" in messages


def test_a_tool_call_is_no_empty_answer(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    dataset = write_data(tmp_path, train=[{"messages": [ROW["messages"][0], call]}])
    assert checked(dataset)[1] == {}


def test_empty_completions(tmp_path):
    dataset = write_data(tmp_path, train=[{"prompt": "a", "completion": ""}])
    assert checked(dataset)[1] == {"data-format.empty-answers": "warning"}


@pytest.mark.parametrize(
    ("messages", "code", "fix"),
    [
        (
            [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}],
            "data-format.unknown-roles",
            "rename the roles gpt -> assistant and human -> user",
        ),
        (
            [{"role": "narrator", "content": "a"}, {"role": "assistant", "content": "b"}],
            "data-format.unknown-roles",
            "use the roles system, user, assistant and tool",
        ),
    ],
)
def test_what_to_rename_roles_to(tmp_path, messages, code, fix):
    outcome, _ = checked(write_data(tmp_path, train=[{"messages": messages}]))
    assert {one.code: one.fix for one in outcome.findings}[code] == fix


def test_messages_of_sharegpt_are_told_how_to_be_renamed(tmp_path):
    spoken = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    dataset = write_data(tmp_path, train=[{"messages": spoken}] * 2)
    outcome, codes = checked(dataset, rows_of(dataset), Tokenizer.read(BASE))
    assert codes == {"data-format.rows-refused": "error"}
    assert "from -> role and value -> content" in outcome.findings[0].fix


def test_a_model_without_a_template(tmp_path):
    model = model_copy(tmp_path)
    dataset = write_data(tmp_path, train=[ROW] * 3)
    bare = without_template(model)
    outcome, codes = checked(dataset, rows_of(dataset, model=bare), Tokenizer.read(bare))
    assert codes == {"data-format.no-template": "error"}
    assert "instruct version" in outcome.findings[0].fix
    text = write_data(tmp_path, train=[{"text": "a lake"}] * 3)
    assert checked(text, rows_of(text, model=bare), Tokenizer.read(bare))[1] == {}


def test_foreign_roles_everywhere_are_an_error_unless_the_template_knows_them(tmp_path):
    spoken = [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]
    dataset = write_data(tmp_path, train=[{"messages": spoken}] * 3)
    code = "data-format.unknown-roles"
    assert checked(dataset, Tokenizer.read(BASE))[1][code] == "error"
    assert checked(dataset)[1][code] == "warning"
    mixed = write_data(tmp_path, train=[{"messages": spoken}, ROW])
    assert checked(mixed, Tokenizer.read(BASE))[1][code] == "warning"
    knows = (
        "{% for m in messages %}{% if m.role in ['human', 'gpt'] %}{{ m.content }}"
        "{% endif %}{% endfor %}"
    )
    model = Tokenizer.read(model_copy(tmp_path, template=knows))
    assert code not in checked(dataset, model)[1]


def without_template(model):
    (model / "chat_template.jinja").unlink(missing_ok=True)
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template", None)
    path.write_text(json.dumps(settings))
    return model


# Something to validate on.

ROW = chat("a", "b")


@pytest.mark.parametrize("splits", [{}, {"valid": ""}])
def test_no_split(tmp_path, splits):
    dataset = write_data(tmp_path, train=[ROW], **splits)
    assert run(data_format, dataset)[1] == {"data-format.no-validation-split": "info"}


@pytest.mark.parametrize(
    ("series", "severity"),
    [
        ({"train_loss": ([10, 20], [2.0, 1.0])}, "warning"),
        # It validated on rows that are not here.
        ({"train_loss": ([10, 20], [2.0, 1.0]), "val_loss": ([1, 20], [3.0, 1.0])}, "info"),
        ({"rewards": ([10, 20], [0.1, 0.2]), "train_loss": ([10, 20], [0.7, 0.6])}, "info"),
        ({"grad_norm": ([10], [1.0])}, "info"),
    ],
)
def test_whether_the_run_went_without_one(tmp_path, series, severity):
    dataset = write_data(tmp_path, train=[ROW])
    log = log_of(**series)
    assert run(data_format, dataset, log)[1] == {"data-format.no-validation-split": severity}


def test_a_single_file_says_nothing_of_the_others(tmp_path):
    dataset = write_data(tmp_path, train=[ROW])
    assert run(data_format, Dataset.read(dataset.path / "train.jsonl"))[1] == {}


@pytest.mark.parametrize(("count", "severity"), [(3, "error"), (4, None)])
def test_fewer_rows_than_a_batch(tmp_path, count, severity):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * count)
    config = config_of(tmp_path, batch_size=4)
    _, codes = run(data_format, dataset, config)
    assert codes.get("data-format.no-validation-batches") == severity


@pytest.mark.parametrize(("loss", "severity"), [(1.5, "warning"), (float("nan"), "error")])
def test_the_log_may_show_that_it_worked(tmp_path, loss, severity):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * 3)
    log = log_of(val_loss=([1], [loss]))
    _, codes = run(data_format, dataset, config_of(tmp_path, batch_size=4), log)
    assert codes == {"data-format.no-validation-batches": severity}


def test_no_batches(tmp_path):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * 8)
    _, codes = run(data_format, dataset, config_of(tmp_path, val_batches=0))
    assert codes == {"data-format.no-validation-batches": "warning"}
    assert run(data_format, dataset, config_of(tmp_path, val_batches=1))[1] == {}
