from collections import Counter
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from fixtures.lab.cases.workshop import copied_base
from fixtures.lab.real.rows import TEXT_FORMS
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.tuned_model import TunedModel
from tests.checks.data_evidence import (
    BASE,
    DATA,
    chat,
    config_of,
    model_copy,
    rows_of,
    run,
    write_data,
)
from tests.conftest import check_called
from tests.weight_files import lora, save

#: The outcome, and severities by symptom.
tell = partial(run, check_called("tokenizer-consistency"))
GEOGRAPHY = Dataset.read(DATA / "geography")
TOKENIZER = Tokenizer.read(BASE)
MARKERS, BY_HAND = "template-markers-unknown", "written-by-hand"
NO_END = "terminator-is-not-an-end-token"


@pytest.mark.parametrize(
    ("vocabulary", "codes"), [(768, {}), (767, {"beyond-vocabulary": "error"})]
)
def test_tokens_without_an_embedding(tmp_path, vocabulary, codes):
    folder = copied_base(tmp_path / "changed", config={"vocab_size": vocabulary})
    outcome, told = tell(TOKENIZER, BaseModel.read(folder), rows_of(GEOGRAPHY), GEOGRAPHY)
    assert told == codes
    assert outcome.status.value == ("found" if codes else "passed")


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
CHANNEL = CHATML_AND.replace("ADDED", "<|channel|>")
ROLES = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
REFUSING = "{{ raise_exception('no') }}<|eot_id|>"


@pytest.mark.parametrize(
    ("template", "settings", "unknown"),
    [
        (LLAMA_3, {}, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
        (CHANNEL, {}, ("<|channel|>",)),
        (CHATML_AND.replace("ADDED", "<start_of_turn>"), {}, ("<start_of_turn>",)),
        (CHATML_AND.replace("ADDED", "<\uff5cAssistant\uff5c>"), {}, ("<\uff5cAssistant\uff5c>",)),
        (CHATML_AND.replace("ADDED", "</s>"), {}, ("</s>",)),
        (None, {"split_special_tokens": True}, ("<|im_start|>", "<|im_end|>")),
        # It was added, is plain text on purpose, or is not written in a plain conversation.
        (CHANNEL, {"extra_special_tokens": ["<|channel|>"]}, ()),
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


UNTRAINED, EMBEDDING = "markers-untrained", "model.embed_tokens"
START, END = 766, 767
ROWS = load_file(BASE / "model.safetensors")[f"{EMBEDDING}.weight"].astype("f4")
EQUAL = ROWS.copy()
EQUAL[START] = EQUAL[END]


def base_with(tmp_path, tensors, **settings):
    folder = copied_base(tmp_path / "model", config=settings)
    save(folder / "model.safetensors", tensors, metadata={"format": "mlx"})
    return BaseModel.read(folder)


def away(gap):
    """The row of `<|im_end|>`, moved by so much of its length."""
    step = np.random.default_rng(0).normal(size=ROWS.shape[1])
    return ROWS[END] + gap * np.linalg.norm(ROWS[END]) * step / np.linalg.norm(step)


MEAN = ROWS.mean(axis=0)
RESIZED = np.random.default_rng(0).multivariate_normal(MEAN, 1e-9 * np.cov(ROWS.T), size=2)


@pytest.mark.parametrize(
    ("rows", "severity", "words"),
    [
        ({}, None, ""),
        ({"start": ROWS[END]}, "error", "2 of "),
        ({"start": RESIZED[0], "end": RESIZED[1]}, "error", "(equal rows)"),
        ({"start": away(0.009)}, "error", "“<|im_end|>” is to end the answers"),
        ({"start": away(0.011)}, None, ""),
        ({"end": 0.0}, "error", "“<|im_end|>” (rows of zeros)"),
        ({"start": 0.0}, "warning", "Nothing here trains them."),
        ({"start": 1e-6}, None, ""),
        ({"start": np.nan, "end": np.inf}, None, ""),
    ],
)
@pytest.mark.parametrize("rows_are_known", [True, False])
def test_markers_without_an_embedding_of_their_own(tmp_path, rows, severity, words, rows_are_known):
    embedding = ROWS.copy()
    embedding[START], embedding[END] = rows.get("start", ROWS[START]), rows.get("end", ROWS[END])
    base = base_with(tmp_path, {f"{EMBEDDING}.weight": embedding})
    known = (rows_of(GEOGRAPHY), GEOGRAPHY) if rows_are_known else ()
    outcome, told = tell(TOKENIZER, base, *known)
    assert told == ({UNTRAINED: severity} if severity else {})
    for finding in outcome.findings:
        assert words in finding.message
        assert finding.where == EMBEDDING


def test_a_token_of_the_answers_without_an_embedding(tmp_path):
    """Labels that were added to a vocabulary, which nothing trains."""
    taught = rows_of(GEOGRAPHY)
    held = Counter(token for row in taught.rows for token in {*row.targets.tolist()} - {START, END})
    often = [token for token, count in held.items() if count >= len(taught.rows) / 20]
    label, rare = max(often), max({*held} - {*often})
    for token, expected in ((label, {UNTRAINED: "error"}), (rare, {})):
        embedding = ROWS.copy()
        embedding[token] = 0.0
        base = base_with(tmp_path / str(token), {f"{EMBEDDING}.weight": embedding})
        outcome, told = tell(TOKENIZER, base, taught, GEOGRAPHY)
        assert told == expected
        assert all("and answers hold" in finding.message for finding in outcome.findings)


@pytest.mark.parametrize(("head", "hit"), [(EQUAL, True), (ROWS, False)])
def test_a_head_of_its_own_may_tell_markers_apart(tmp_path, head, hit):
    tensors = {f"{EMBEDDING}.weight": EQUAL, "lm_head.weight": head}
    assert (UNTRAINED in tell(TOKENIZER, base_with(tmp_path, tensors))[1]) is hit


@pytest.mark.parametrize("is_equal", [True, False])
def test_quantised_embeddings(tmp_path, is_equal):
    random = np.random.default_rng(0)
    parts = {"weight": random.integers(0, 2**32, (768, 12), "u4")}
    parts |= {name: random.normal(size=(768, 3)).astype("f4") for name in ("scales", "biases")}
    for part in parts.values() if is_equal else ():
        part[START] = part[END]
    tensors = {f"{EMBEDDING}.{name}": part for name, part in parts.items()}
    base = base_with(tmp_path, tensors, quantization={"group_size": 32, "bits": 4})
    assert base.shape(EMBEDDING) == ROWS.shape
    assert (UNTRAINED in tell(TOKENIZER, base)[1]) is is_equal


@pytest.mark.parametrize(
    ("module", "hit"), [("model.layers.0.self_attn.q_proj", True), (EMBEDDING, False)]
)
def test_what_the_adapter_is_on(tmp_path, module, hit):
    base = base_with(tmp_path, {f"{EMBEDDING}.weight": EQUAL})
    planned = config_of(tmp_path, lora_parameters={"keys": [module], "rank": 8})
    assert (UNTRAINED in tell(TOKENIZER, base, planned)[1]) is hit
    file = save(tmp_path / "adapters.safetensors", lora({module: (96, 96)}))
    assert (UNTRAINED in tell(TOKENIZER, base, Adapter.read(file))[1]) is hit


@pytest.mark.parametrize(("saved", "hit"), [(ROWS, False), (EQUAL, True), (ROWS[:9], True)])
def test_embeddings_that_were_trained_themselves(tmp_path, saved, hit):
    base = base_with(tmp_path, {f"{EMBEDDING}.weight": EQUAL})
    file = save(tmp_path / "adapters.safetensors", {f"{EMBEDDING}.weight": saved})
    tuned = TunedModel.of(Adapter.read(file))
    assert (UNTRAINED in tell(TOKENIZER, base, tuned)[1]) is hit


def test_embeddings_that_do_not_matter_or_cannot_be_read(tmp_path):
    base = base_with(tmp_path, {f"{EMBEDDING}.weight": EQUAL})
    assert UNTRAINED not in tell(TOKENIZER, base, Dataset.read(DATA / "geography-text"))[1]
    (base.path / "model.safetensors").write_bytes(b"")
    outcome, told = tell(TOKENIZER, base)
    assert told == {}
    assert "ended inside" in outcome.unsought[f"tokenizer-consistency.{UNTRAINED}"]


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
    bare = copied_base(tmp_path / "bare", chat_template=None)
    assert tell(rows, Tokenizer.read(bare))[1] == {}
    refusing = Tokenizer.read(model_copy(tmp_path / "no", REFUSING))
    assert f"tokenizer-consistency.{BY_HAND}" in tell(rows, refusing)[0].unsought
