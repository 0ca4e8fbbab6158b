import json
from pathlib import Path

import pytest

from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.prompts import prompts_for
from tests.checks.data_evidence import BASE, chat, write_data
from tests.conftest import RUNS, run_names


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "generations.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    "name", [name for name in run_names() if (RUNS / name / "generations.jsonl").exists()]
)
def test_every_fixture_is_read_whole(name: str) -> None:
    path = RUNS / name / "generations.jsonl"
    found = Generations.read(path)
    assert len(found.items) == len(path.read_text().splitlines())
    assert all(item.tuned_tokens and item.max_tokens == 48 for item in found.items)
    assert all(item.base is not None for item in found.items)
    assert found.sources[0].sha256 is not None
    assert found.how == "recorded"


NAMES = ("tuned", "response", "output", "completion", "generated_text", "generation", "text")
ANSWERED = {"role": "assistant", "content": "a"}
ASKED = [{"role": "user", "content": content} for content in ("first", "last")]


@pytest.mark.parametrize(
    ("text", "prompts", "tuned"),
    [
        *((json.dumps({"prompt": "p", name: "a"}) + "\n", ["p"], ["a"]) for name in NAMES),
        ('["a", "b"]', ["", ""], ["a", "b"]),
        ('{"samples": [{"question": "q", "output": "a"}]}', ["q"], ["a"]),
        # A conversation is one prompt, up to the last message of the user.
        (json.dumps({"messages": ASKED, "response": "a"}), ["first\nlast"], ["a"]),
        (json.dumps({"prompt": [*ASKED, ANSWERED], "output": "a"}), ["first\nlast"], ["a"]),
        # A line that was cut off is left out.
        ('{"prompt": "p", "tuned": "a"}\n{"prompt": "q", "t', ["p"], ["a"]),
    ],
)
def test_what_is_read(tmp_path: Path, text: str, prompts: list[str], tuned: list[str]) -> None:
    items = Generations.read(written(tmp_path, text)).items
    assert [item.prompt for item in items] == prompts
    assert [(item.tuned, item.base) for item in items] == [(one, None) for one in tuned]


def test_tokens_that_are_no_ids_are_left_out(tmp_path: Path) -> None:
    row = {"prompt": "p", "tuned": "a", "tuned_tokens": [1, "x"], "max_tokens": 0}
    found = Generations.read(
        written(tmp_path, json.dumps({"end_token_ids": [2, 3], "samples": [row]}))
    )
    assert (found.items[0].tuned_tokens, found.items[0].max_tokens) == (None, None)
    assert found.end_token_ids == (2, 3)


def test_a_prompt_counts_once(tmp_path: Path) -> None:
    rows = [{"prompt": p, "tuned": "a"} for p in ("p", "p", "", "")]
    found = Generations.read(written(tmp_path, "\n".join(map(json.dumps, rows))))
    assert [item.prompt for item in found.distinct] == ["p", "", ""]


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    answer = "one\u2028two\u0085three"
    row = json.dumps({"prompt": "a", "tuned": answer}, ensure_ascii=False)
    path = written(tmp_path, f"{row}\r\n{row}\n")
    assert [one.tuned for one in Generations.read(path).items] == [answer, answer]


def test_of_a_few_answers_each_is_asked_for_as_often(tmp_path: Path) -> None:
    rows = [chat(f"What is {i}?", "rare" if i > 96 else "usual") for i in range(100)]
    dataset = write_data(tmp_path, train=rows[:2], valid=rows)
    asked = prompts_for(dataset, Tokenizer.read(BASE), held_out=8)
    assert [one.expected for one in asked[:6]] == ["usual", "rare"] * 3
    many = write_data(tmp_path, train=rows[:2], valid=[chat(f"{i}?", f"{i}.") for i in range(100)])
    asked = prompts_for(many, Tokenizer.read(BASE), held_out=8)
    assert [one.expected for one in asked[:3]] == ["0.", "1.", "2."]
