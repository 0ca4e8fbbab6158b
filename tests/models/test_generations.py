import json
from pathlib import Path

import pytest

from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError
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


@pytest.mark.parametrize(
    "key", ["tuned", "response", "output", "completion", "generated_text", "generation", "text"]
)
def test_the_answer_has_many_names(tmp_path: Path, key: str) -> None:
    found = Generations.read(written(tmp_path, json.dumps({"prompt": "p", key: "a"}) + "\n"))
    assert (found.items[0].prompt, found.items[0].tuned, found.items[0].base) == ("p", "a", None)


def test_plain_lists_and_nested_lists(tmp_path: Path) -> None:
    assert [i.tuned for i in Generations.read(written(tmp_path, '["a", "b"]')).items] == ["a", "b"]
    nested = {"end_token_ids": [2, 3], "samples": [{"question": "q", "output": "a"}]}
    found = Generations.read(written(tmp_path, json.dumps(nested)))
    assert found.items[0].prompt == "q"
    assert found.end_token_ids == (2, 3)


def test_the_last_user_message_is_the_prompt(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": c} for c in ("first", "last")]
    row = json.dumps({"messages": messages, "response": "a"})
    assert Generations.read(written(tmp_path, row)).items[0].prompt == "last"


def test_a_cut_line_is_left_out_and_the_rest_read(tmp_path: Path) -> None:
    found = Generations.read(written(tmp_path, '{"prompt": "p", "tuned": "a"}\n{"prompt": "q", "t'))
    assert [item.tuned for item in found.items] == ["a"]


@pytest.mark.parametrize("text", ["{}\n", '{"prompt": "p"}\n', "3\n", "not json\n"])
def test_a_file_without_answers_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="no generated answer"):
        Generations.read(written(tmp_path, text))


def test_tokens_that_are_no_ids_are_left_out(tmp_path: Path) -> None:
    row = {"prompt": "p", "tuned": "a", "tuned_tokens": [1, "x"], "max_tokens": 0}
    item = Generations.read(written(tmp_path, json.dumps(row))).items[0]
    assert (item.tuned_tokens, item.max_tokens) == (None, None)


def test_a_prompt_counts_once(tmp_path: Path) -> None:
    rows = [{"prompt": p, "tuned": "a"} for p in ("p", "p", "", "")]
    found = Generations.read(written(tmp_path, "\n".join(map(json.dumps, rows))))
    assert [item.prompt for item in found.distinct] == ["p", "", ""]


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    answer = "one\u2028two\u0085three"
    row = json.dumps({"prompt": "a", "tuned": answer}, ensure_ascii=False)
    path = written(tmp_path, f"{row}\r\n{row}\n")
    assert [one.tuned for one in Generations.read(path).items] == [answer, answer]
