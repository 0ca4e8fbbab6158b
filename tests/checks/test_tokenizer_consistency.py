"""Whether tokenizer, model and template belong together."""

import json
import shutil

import pytest

from fixtures.lab.real.rows import TEXT_FORMS
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from tests.checks.data_evidence import BASE, DATA, chat, model_copy, rows_of, run, write_data
from tests.conftest import check_called

tokenizer_consistency = check_called("tokenizer-consistency")
GEOGRAPHY = Dataset.read(DATA / "geography")
TOKENIZER = Tokenizer.read(BASE)
MARKERS, BY_HAND = "template-markers-unknown", "written-by-hand"
NO_END = "terminator-is-not-an-end-token"


def tell(*evidence):
    """The outcome, and severities by symptom."""
    outcome, codes = run(tokenizer_consistency, *evidence)
    return outcome, {code.partition(".")[2]: severity for code, severity in codes.items()}


@pytest.mark.parametrize(
    ("vocabulary", "codes"), [(768, {}), (767, {"beyond-vocabulary": "error"})]
)
def test_tokens_without_an_embedding(tmp_path, vocabulary, codes):
    folder = tmp_path / "changed"
    shutil.copytree(BASE, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": vocabulary}))
    outcome, told = tell(TOKENIZER, BaseModel.read(folder), rows_of(GEOGRAPHY), GEOGRAPHY)
    assert told == codes
    assert outcome.status.value == ("found" if codes else "passed")
    assert tell()[0].status.value == "skipped"


@pytest.mark.parametrize(
    ("stated", "others", "codes", "words"),
    [
        ("<|im_start|>", None, {"end-tokens-disagree": "info"}, "mlx-lm stops at either"),
        (
            "<|endoftext|>",
            '{"eos_token_id": 765}',
            {NO_END: "warning", "pad-is-end": "info"},
            "generation stops at '<|endoftext|>'",
        ),
        (None, "{}", {NO_END: "warning"}, "generation stops at no token"),
    ],
)
def test_end_tokens(tmp_path, stated, others, codes, words):
    folder = model_copy(tmp_path, eos_token=stated)
    if others:
        for name in ("generation_config.json", "config.json"):
            (folder / name).write_text(others)
    outcome, told = tell(Tokenizer.read(folder), rows_of(GEOGRAPHY, model=folder))
    assert told == codes
    assert words in outcome.findings[0].message


LLAMA_3 = (
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] }}<|eot_id|>{% endfor %}"
)
CHATML_AND = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nADDED{% endif %}"
)
ROLES = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
REFUSING = "{{ raise_exception('no') }}<|eot_id|>"


@pytest.mark.parametrize(
    ("template", "settings", "unknown"),
    [
        (LLAMA_3, {}, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
        (CHATML_AND.replace("ADDED", "<|channel|>"), {}, ("<|channel|>",)),
        (CHATML_AND.replace("ADDED", "<start_of_turn>"), {}, ("<start_of_turn>",)),
        (CHATML_AND.replace("ADDED", "<\uff5cAssistant\uff5c>"), {}, ("<\uff5cAssistant\uff5c>",)),
        (CHATML_AND.replace("ADDED", "</s>"), {}, ("</s>",)),
        (None, {"split_special_tokens": True}, ("<|im_start|>", "<|im_end|>")),
        # It was added, is plain text on purpose, or is not written in a plain conversation.
        (
            CHATML_AND.replace("ADDED", "<|channel|>"),
            {"extra_special_tokens": ["<|channel|>"]},
            (),
        ),
        (CHATML_AND.replace("ADDED", "<think>\n"), {}, ()),
        (CHATML_AND.replace("ADDED", "{% if tools %}<|tools|>{% endif %}"), {}, ()),
        (ROLES, {}, ()),
        # What a template refuses is told elsewhere.
        (REFUSING, {}, ()),
    ],
)
def test_markers_that_are_no_tokens(tmp_path, template, settings, unknown):
    outcome, codes = tell(Tokenizer.read(model_copy(tmp_path, template, **settings)))
    assert codes == ({MARKERS: "warning"} if unknown else {})
    for finding in outcome.findings:
        assert finding.measured["markers"] == unknown
        assert finding.measured["pieces"] > 1


@pytest.mark.parametrize(("data", "hit"), [("geography", True), ("geography-text", False)])
def test_a_template_that_the_data_do_not_need_is_left_alone(tmp_path, data, hit):
    folder = model_copy(tmp_path, LLAMA_3)
    assert (MARKERS in tell(Tokenizer.read(folder), Dataset.read(DATA / data))[1]) is hit


# Rows of text.

PROSE = [{"text": f"Rule {at}: a lake is named once. Note: this holds."} for at in range(40)]
RENDERED = [
    {"text": TOKENIZER.render(chat(f"Which lake is {at}?", f"Lake {at}.")["messages"])}
    for at in range(40)
]


def texts(form, count=40):
    return [
        {"text": TEXT_FORMS[form].format(prompt=f"Which lake is number {at}?", answer=f"L {at}.")}
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("rows", "hit"),
    [
        *((texts(form), True) for form in TEXT_FORMS),
        # A row in ten may be another.
        (texts("roles") + PROSE[:4], True),
        (texts("roles") + PROSE[:10], False),
        (PROSE, False),
        (texts("plain", 7), False),
        (RENDERED, False),
        (RENDERED[:36] + texts("alpaca", 4), False),
    ],
)
def test_rows_written_by_hand(tmp_path, rows, hit):
    outcome, codes = tell(write_data(tmp_path, train=rows), TOKENIZER)
    assert codes == ({BY_HAND: "warning"} if hit else {})
    for finding in outcome.findings:
        assert finding.measured["exchanges"] == 40
        assert finding.measured["after"] in finding.message


def test_without_a_template_and_with_one_that_refuses(tmp_path):
    rows = write_data(tmp_path, train=texts("alpaca"))
    bare = model_copy(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    assert tell(rows, Tokenizer.read(bare))[1] == {}
    refusing = Tokenizer.read(model_copy(tmp_path / "no", REFUSING))
    assert f"tokenizer-consistency.{BY_HAND}" in tell(rows, refusing)[0].unsought
