"""Tokenizers that panic, explode or never answer: one sentence, whoever loads them."""

import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import load_tokenizer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.limits import TimeLimitExceeded
from mlxdoctor.safety.reading_limits import using
from tests.edits import change_json


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return copied_base(tmp_path / "base")


def replacing(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def test_a_pattern_that_backtracks_without_end_is_refused_and_no_panic(base: Path) -> None:
    hostile = replacing({"Regex": r"(\w+\s?)+\.\d$"}, " ")
    change_json(base / "tokenizer.json", normalizer=hostile)
    with pytest.raises(InputError, match="cannot encode a text"):
        Tokenizer.read(base).encode("word " * 40 + ".")


def test_a_limit_of_time_is_not_taken_for_the_tokenizers_failure(base: Path) -> None:
    class Slow:
        def encode(self, *_: object, **__: object) -> None:
            raise TimeLimitExceeded(1.0)

    tokenizer = Tokenizer.read(base)
    object.__setattr__(tokenizer, "_backend", Slow())
    with pytest.raises(TimeLimitExceeded):
        tokenizer.encode("text")


def test_transformers_is_not_given_what_our_reader_refuses(base: Path) -> None:
    load_tokenizer(base)
    # As in the cache of the hub, where a file was removed that nobody needs.
    (base / "README.md").symlink_to("nowhere")
    load_tokenizer(base)
    step = replacing({"String": "a"}, "a" * 1000)
    steps = {"type": "Sequence", "normalizers": [step] * 4}
    change_json(base / "tokenizer.json", normalizer=steps)
    with pytest.raises(InputError, match="times as long"):
        load_tokenizer(base)


def test_a_pipe_among_a_models_files_is_refused(base: Path) -> None:
    os.mkfifo(base / "vocab.json")
    with pytest.raises(InputError, match="is not a regular file"):
        load_tokenizer(base)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='a') %}" + "{% set ns.x = ns.x ~ ns.x %}" * 40 + "{{ ns.x }}",
    ],
)
def test_transformers_is_not_given_a_template_that_takes_too_much(
    base: Path, template: str
) -> None:
    (base / "chat_template.jinja").write_text(template)
    with using(["template_seconds=0.2"]), pytest.raises(InputError, match="limit template_"):
        load_tokenizer(base)


def test_a_template_that_refuses_two_short_messages_may_take_others(base: Path) -> None:
    (base / "chat_template.jinja").write_text("{{ raise_exception('a system message, please') }}")
    load_tokenizer(base)
