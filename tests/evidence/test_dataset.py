import json

import pytest

from mlxdoctor.evidence.dataset import Dataset, Pair, is_log
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES

GEOGRAPHY = FIXTURES / "data" / "geography"


def test_a_folder_has_three_splits_in_their_order():
    dataset = Dataset.read(GEOGRAPHY)
    counts = [(name, len(split.rows)) for name, split in dataset.splits.items()]
    assert counts == [("train", 200), ("valid", 40), ("test", 40)]
    assert [source.path.stem for source in dataset.sources] == ["train", "valid", "test"]


@pytest.mark.parametrize(
    ("row", "row_format"),
    [
        ({"messages": []}, "chat"),
        ({"prompt": "a", "completion": "b"}, "completions"),
        # mlx-lm asks for completions first.
        ({"messages": [], "prompt": "a", "completion": "b"}, "completions"),
        ({"prompt": "a", "text": "b"}, "text"),
        ({"tokens": [1]}, "unknown"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "pairs"),
        ({"question": "a", "answer": "b"}, "unknown"),
    ],
)
def test_the_first_row_decides_the_format(tmp_path, row, row_format):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert Dataset.read(path).splits["train"].format == row_format


def test_rows_that_are_training_rows_are_not_held_out(tmp_path):
    rows = [{"prompt": name, "completion": "b"} for name in "cdefg"]
    for name, of in (("train", rows[:3]), ("valid", rows[1:]), ("test", rows[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    held_out = Dataset.read(tmp_path).held_out.splits
    assert {name: len(split.rows) for name, split in held_out.items()} == {"train": 3, "valid": 2}
    assert held_out["valid"].line_numbers == (3, 4)


ASKED, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "a", "chosen": "b"}, [ASKED, SAID]),
        ({"prompt": "a", "chosen": "b", "system": "s"}, [SYSTEM, ASKED, SAID]),
        ({"prompt": [SYSTEM, ASKED], "chosen": [SAID]}, [SYSTEM, ASKED, SAID]),
        ({"chosen": [ASKED, SAID]}, [ASKED, SAID]),
        # The prompt is there twice.
        ({"prompt": "a", "chosen": [ASKED, SAID]}, [ASKED, SAID]),
        ({"chosen": "b"}, None),
        ({"prompt": "a", "chosen": None}, None),
        ({"prompt": "a", "chosen": ["b"]}, None),
    ],
)
def test_a_pair_is_its_prompt_and_the_chosen_answer(tmp_path, row, messages):
    (tmp_path / "train.jsonl").write_text(json.dumps({**row, "rejected": "c"}))
    split = Dataset.read(tmp_path).splits["train"]
    if messages is None:
        with pytest.raises(TypeError):
            split.messages(split.rows[0])
        assert split.pair(split.rows[0]).prompt == ""
        return
    assert split.messages(split.rows[0]) == messages
    asked = "\n".join(message["content"] for message in messages[:-1])
    assert split.pair(split.rows[0]) == Pair(asked, "b")


def test_bad_lines_are_collected_with_their_numbers(tmp_path):
    good = b'{"text": "a\\u2028b \xe2\x80\xa8"}'
    lines = [good, b"", b"{", b"[1]", b'{"text": "\xff"}', b"[" * 100_000, good, good]
    (tmp_path / "train.jsonl").write_bytes(b"\r\n".join(lines) + b"\n")
    split = Dataset.read(tmp_path).splits["train"]
    assert split.line_numbers == (1, 7, 8)
    assert len(split.rows) == 3
    assert {line: reason.split(" (")[0] for line, reason in split.bad_lines.items()} == {
        2: "is blank",
        3: "is not JSON",
        4: "holds a JSON list where an object is needed",
        5: "is not UTF-8",
        6: "is not JSON",
    }


def test_one_split_is_enough_and_may_be_empty(tmp_path):
    (tmp_path / "valid.jsonl").write_bytes(b"")
    splits = Dataset.read(tmp_path).splits
    assert set(splits) == {"valid"}
    assert (splits["valid"].rows, splits["valid"].format) == ((), "unknown")


def test_a_log_called_train_jsonl_is_not_data(tmp_path):
    log = tmp_path / "train.jsonl"
    log.write_text('{"loss": 0.69, "chosen": -1.2, "rejected": -1.3}')
    assert is_log(log)
    log.write_text('{"iteration": 0, "val_loss": 5.1}\n{"iteration": 10, "train_loss": 4}\n')
    assert is_log(log)
    assert not is_log(GEOGRAPHY / "train.jsonl")
    assert not is_log(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match=r"has no train\.jsonl"):
        Dataset.read(tmp_path)
    # A question about a loss is still a row.
    log.write_text('{"prompt": "a", "completion": "b", "loss": 1}\n')
    assert Dataset.read(tmp_path).splits["train"].format == "completions"
