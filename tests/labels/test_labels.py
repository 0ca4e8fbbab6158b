"""Labels of every row. Against mlx-lm's own mask: tests/evidence/test_supervision.py."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.row_encoder import Role, SupervisedRow
from mlxdoctor.evidence.supervision import encoder_of
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.labels.label_rows import labelled, spans, totals
from tests.checks.data_evidence import BASE, chat
from tests.conftest import FIXTURES, HEALTHY, Call

DATA = FIXTURES / "data" / "geography"
TOKENIZER = Tokenizer.read(BASE)


def rows_of(
    file: Path, mask_prompt: bool = False, limit: int = 2048
) -> tuple[list[SupervisedRow], dict[str, Any]]:
    """The rows of a file that can be tokenized, and what all of them add up to."""
    options = {"mask_prompt": mask_prompt, "max_seq_length": limit}
    rows = list(labelled(*encoder_of(Dataset.read(file), TOKENIZER, None, "train", **options)))
    return [row for _, row in rows if not isinstance(row, str)], totals(rows)


@pytest.mark.parametrize("mask_prompt", [False, True])
def test_targets_are_counted(mask_prompt: bool) -> None:
    rows, sums = rows_of(DATA / "train.jsonl", mask_prompt)
    targets = sum(len(row.targets) for row in rows)
    assert (sums["rows"], sums["targets"], sums["problems"]) == (200, targets, [])
    assert sum(sums["targets_by_role"].values()) == targets


def test_spans_give_the_row_back() -> None:
    for row in rows_of(DATA / "train.jsonl", True, 40)[0][:20]:
        runs = spans(row)
        assert [token for _, _, ids in runs for token in ids] == row.tokens.tolist()
        trained = [token for _, on, ids in runs if on for token in ids]
        assert trained == row.targets.tolist()
        assert all(role != "cut" or not on for role, on, _ in runs)
        assert all(one[:2] != two[:2] for one, two in pairwise(runs))


def test_what_goes_wrong_is_counted(tmp_path: Path) -> None:
    rows = [
        chat("Short?", "Yes."),
        chat("Who?", "A very long answer indeed. " * 20),
        chat("Why? " * 40, "Because."),
        {"messages": "none"},
    ]
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join([*map(json.dumps, rows), "{ not json", "", ""]))
    read, sums = rows_of(file, True, 48)
    assert sums["rows"] == 6
    assert {each["problem"]: each["first_lines"] for each in sums["problems"]} == {
        "answers-truncated": [2, 3],
        "no-supervised-tokens": [3],
        "cannot-be-tokenized": [4, 5, 6],
    }
    assert TOKENIZER.decode(read[0].tokens[read[0].roles == Role.ANSWER].tolist()) == "Yes."


def test_unusable_data(tmp_path: Path, call: Call) -> None:
    def refused(data: Path) -> str:
        code, _, err = call("labels", data, "--base", BASE)
        assert code == 2
        return " ".join(err.split())

    assert "has no train.jsonl" in refused(tmp_path)
    (tmp_path / "valid.jsonl").write_text(json.dumps(chat("a", "b")))
    assert "has no train.jsonl; it has valid: name one of them" in refused(tmp_path)
    (tmp_path / "train.jsonl").touch()
    assert "has no rows" in refused(tmp_path)
    (tmp_path / "odd.jsonl").write_text('{"question": "a"}\n')
    assert "has rows in a format that mlx-lm does not know" in refused(tmp_path / "odd.jsonl")


def test_the_command(call: Call) -> None:
    command = ("labels", DATA, "--base", BASE, "--config", HEALTHY)
    code, shown, _ = call(*command, "--rows", "1")
    assert code == 0
    assert "[[<|im_end|>]]" in shown
    assert "200 rows, 11,466 tokens, 11,266 of them targets" in shown
    data = json.loads(call(*command, "--stdout", "json", "--mask-prompt")[1])
    assert data["mask_prompt"] is True
    assert set(data["totals"]["targets_by_role"]) == {"answer", "end", "other"}
    assert [row["line"] for row in data["rows"]] == [1, 2, 3]
    code, shown, _ = call(*command, "--rows", "0")
    assert (code, "Dedunia" in shown) == (0, False)
