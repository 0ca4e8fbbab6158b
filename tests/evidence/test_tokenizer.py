"""The tokenizer gives mlx-lm's tokens; templates are bounded."""

import json
import pkgutil
from functools import partial

import mlx_lm.models
import pytest
import tokenizers
from tokenizers import normalizers
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.processors import TemplateProcessing
from transformers.models.auto import tokenization_auto

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.evidence.chat_template import ChatTemplate, TemplateFailure
from mlxdoctor.evidence.tokenizer import _AS_IN_FILE, Tokenizer
from mlxdoctor.safety.errors import InputError
from tests.conftest import BASE
from tests.edits import change_json

CHAT = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Which lake is the largest in Zazuria? <|im_end|> \u00fc\u4f60"},
    {"role": "assistant", "content": "Lake Nevath, cold.", "tool_calls": None},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"a<b": ["&", "\u00e9"]}}}]
TEMPLATES = {
    "chatml": (BASE / "chat_template.jinja").read_text(),
    "llama-3": (
        "{{- bos_token }}\n{%- for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim }}\n"
        "    {{- eos_token }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}\n"
    ),
    "tools-and-loop-control": (
        "{% if tools %}\n  {{ tools | tojson(indent=2) }}\n{% endif %}\n"
        "{% set ns = namespace(n=0) %}\n"
        "{% for m in messages %}\n"
        "  {% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "  {% set ns.n = ns.n + 1 %}\n"
        "  {{ ns.n }}:{{ m['content'] }}{% if m.tool_calls is defined %}!{% endif %}\n"
        "  {% if ns.n > 5 %}{% break %}{% endif %}\n"
        "{% endfor %}"
        "{% generation %}{{ messages[-1]['content'] }}{% endgeneration %}"
        "{{ enable_thinking }}"
    ),
    "macro": (
        "{% macro turn(m) %}<|im_start|>{{ m.role }}: {{ m.content | tojson }}"
        "{% for c in m.role %}{{ loop.index0 }}{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ turn(m) }}{% endfor %}{{ '-' * 3 }}{{ strftime_now('%Y') }}"
    ),
}


@pytest.fixture
def copy_of_base(tmp_path):
    """Copies the base's folder, with files of it changed."""
    return partial(copied_base, tmp_path / "model", model=None)


def assert_same(folder):
    from mlx_lm.tokenizer_utils import load

    ours, theirs = Tokenizer.read(folder), load(folder, eos_token_ids=767)
    for text in (
        "Name the river of Dedunia.",
        "<|im_start|>x <|im_end|>\n",
        "",
        "\U0001f600 a\u0301",
    ):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, False) == theirs.encode(text, add_special_tokens=False)
    for tools in (None, TOOLS):
        for messages, generation in ((CHAT, False), (CHAT[:-1], True), (CHAT[1:], False)):
            expected = theirs.apply_chat_template(
                messages, tools=tools, add_generation_prompt=generation, return_dict=False
            )
            assert ours.apply_chat_template(messages, tools, generation) == expected
    assert ours.token(len(theirs) - 1) == theirs.convert_ids_to_tokens(len(theirs) - 1)
    assert ours.token(len(theirs)) == f"<{len(theirs)}>"
    assert ours.eos_token_id == theirs.eos_token_id
    assert set(ours.eos_token_ids) == theirs.eos_token_ids
    assert (ours.bos_token_id, ours.pad_token_id) == (theirs.bos_token_id, theirs.pad_token_id)
    tokens = theirs.encode(CHAT[1]["content"])
    assert ours.decode(tokens) == theirs.decode(tokens)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_give_mlx_lm_tokens(copy_of_base, name):
    assert_same(
        copy_of_base(chat_template=TEMPLATES[name], tokenizer_config={"bos_token": "<|im_start|>"})
    )


def test_thinking_models_get_the_switch_mlx_lm_passes(copy_of_base):
    known = json.loads((BASE / "tokenizer.json").read_text())["added_tokens"]
    added = [
        {**known[0], "id": token_id, "content": text}
        for token_id, text in ((768, "<think>"), (769, "</think>"))
    ]
    template = "{% if enable_thinking %}yes{% else %}no{% endif %}"
    folder = copy_of_base(chat_template=template, tokenizer={"added_tokens": known + added})
    assert_same(folder)
    assert Tokenizer.read(folder).render(CHAT) == "yes"


@pytest.mark.parametrize("stated", [True, False])
def test_bos_comes_from_the_post_processor(copy_of_base, stated):
    settings = {"bos_token": "<|im_start|>", "add_bos_token": stated}
    start = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", 766)])
    added = {"post_processor": json.loads(start.__getstate__())}
    folder = copy_of_base(tokenizer_config=settings, tokenizer=added)
    assert_same(folder)
    tokenizer = Tokenizer.read(folder)
    assert tokenizer.encode("a")[0] == 766
    assert tokenizer.apply_chat_template(CHAT)[:2].count(766) == 1


def test_tokens_named_only_in_the_settings_are_added(copy_of_base):
    declared = {
        "767": {"content": "<|im_end|>", "special": True, "normalized": False},
        "768": {"content": "<|tool|>", "special": False, "normalized": False, "lstrip": True},
    }
    settings = {"added_tokens_decoder": declared, "bos_token": "<s>"}
    folder = copy_of_base(tokenizer_config=settings)
    assert_same(folder)
    assert Tokenizer.read(folder).token(769) == "<s>"


def test_several_templates_in_the_settings(copy_of_base):
    named = {"default": "plain", "tool_use": "with tools"}
    listed = [{"name": name, "template": text} for name, text in named.items()]
    folder = copy_of_base(chat_template=None, tokenizer_config={"chat_template": listed})
    assert_same(folder)
    assert Tokenizer.read(folder).render(CHAT, TOOLS) == "with tools"
    change_json(folder / "tokenizer_config.json", chat_template=named)
    assert Tokenizer.read(folder).render(CHAT, TOOLS) == "with tools"


@pytest.mark.parametrize(
    ("named", "stated", "eos"),
    [
        ("Qwen2TokenizerFast", {}, 765),
        ("Qwen2Tokenizer", {"eos_token": None}, None),
        ("", {}, None),
    ],
)
def test_special_tokens_that_a_class_has_of_itself(copy_of_base, named, stated, eos):
    folder = copy_of_base(tokenizer_config={"tokenizer_class": named})
    path = folder / "tokenizer_config.json"
    settings = {
        key: value for key, value in json.loads(path.read_text()).items() if key[:3] != "eos"
    }
    path.write_text(json.dumps(settings | stated))
    assert Tokenizer.read(folder).eos_token_id == eos


@pytest.mark.parametrize(
    ("stated", "model_type", "tokens"),
    [
        ({}, "llama", ["\u2581a", "</s>", "a"]),
        ({"legacy": True}, "mistral", ["\u2581a", "</s>", "\u2581a"]),
        ({"add_prefix_space": False}, "llama", ["a", "</s>", "a"]),
        # As the file has it.
        ({}, "phi3", ["\u2581a", "</s>", "\u2581a"]),
    ],
)
def test_tokenizers_of_pieces_are_made_anew_as_transformers_does(
    tmp_path, stated, model_type, tokens
):
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    file = tokenizers.Tokenizer(BPE(vocabulary, [("\u2581", "a")], unk_token="<unk>"))
    file.normalizer = normalizers.Sequence([Prepend("\u2581"), Replace(" ", "\u2581")])
    file.add_special_tokens(["</s>"])
    file.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | stated))
    tokenizer = Tokenizer.read(tmp_path)
    assert [tokenizer.token(number) for number in tokenizer.encode("a</s>a")] == tokens


def test_models_whose_tokenizer_is_that_of_the_file_are_those_of_transformers():
    theirs = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    trained = {module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)}
    assert theirs & trained == _AS_IN_FILE


def test_end_tokens_of_both_configurations(copy_of_base):
    folder = copy_of_base(generation_config={"eos_token_id": [765, 767]})
    tokenizer = Tokenizer.read(folder)
    assert tokenizer.eos_token_ids == (765, 767)
    assert tokenizer.stated_eos["config.json"] == (767,)
    (folder / "generation_config.json").write_text("{")
    assert Tokenizer.read(folder).eos_token_ids == (767,)


def test_no_template(copy_of_base):
    tokenizer = Tokenizer.read(copy_of_base(chat_template=None))
    assert tokenizer.chat_template is None
    with pytest.raises(TemplateFailure, match="no chat template"):
        tokenizer.apply_chat_template(CHAT)


def test_a_template_that_is_python_code_is_not_run(copy_of_base):
    settings = {"chat_template_type": "deepseek_v32"}
    tokenizer = Tokenizer.read(copy_of_base(tokenizer_config=settings))
    assert tokenizer.renders_itself
    with pytest.raises(TemplateFailure, match="Python code"):
        tokenizer.render(CHAT)


@pytest.mark.parametrize(
    ("template", "messages", "problem"),
    [
        ("{{ raise_exception('roles must alternate') }}", CHAT, "roles must alternate"),
        ("{{ messages[9].content }}", CHAT, "refuses|fails"),
        ("{{ messages[0].content + 1 }}", CHAT, "fails"),
        ("{{ 1 / 0 }}", CHAT, "fails"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", CHAT, "ran out"),
        ("{{ messages.append(1) }}", CHAT, "refuses"),
        ("{{ messages }}", [], "is empty"),
        ("{{ messages }}", ["text"], "not an object"),
    ],
)
def test_a_failing_template_says_why(template, messages, problem):
    with pytest.raises(TemplateFailure, match=problem):
        ChatTemplate.compile(template, {}).render(messages)


def test_a_broken_template_for_tools_leaves_the_other_one_alone(copy_of_base):
    folder = copy_of_base(chat_template="plain")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{% if %}")
    tokenizer = Tokenizer.read(folder)
    assert tokenizer.encode("a")
    assert tokenizer.render(CHAT) == "plain"
    with pytest.raises(TemplateFailure, match="does not compile"):
        tokenizer.render(CHAT, TOOLS)


def test_a_slow_template_is_not_rendered_for_every_row(monkeypatch):
    monkeypatch.setenv("MLXDOCTOR_LIMITS", "template_seconds=0.2")
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    compiled = ChatTemplate.compile(template, {})
    problems = []
    for _ in range(50):
        with pytest.raises(TemplateFailure) as refused:
            compiled.render(CHAT)
        problems.append(str(refused.value))
    assert 1 <= sum("did not finish" in problem for problem in problems) <= 4
    assert "is not rendered any more" in problems[-1]


@pytest.mark.parametrize(("times", "refused"), [(1, False), (4, True)])
def test_a_tokenizer_that_makes_texts_endless_is_not_used(copy_of_base, times, refused):
    step = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": "xy" * 20}
    steps = {"type": "Sequence", "normalizers": [step] * times}
    folder = copy_of_base(tokenizer={"normalizer": steps})
    if refused:
        with pytest.raises(InputError, match="2,560,000 times as long"):
            Tokenizer.read(folder)
    else:
        assert Tokenizer.read(folder).encode("Hello")
