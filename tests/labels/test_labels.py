"""Labels of every row: against mlx-lm's own mask, by hand, and on data that go wrong."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.cli import main
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.evidence.supervision import encoder_of
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.labels.label_rows import LabelledRow, Totals, labelled, spans

FIXTURES = Path(__file__).parents[2] / "fixtures"
BASE, DATA = FIXTURES / "base", FIXTURES / "data" / "geography"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.read(BASE)


def rows_of(
    file: Path, tokenizer: Tokenizer, mask_prompt: bool = False, limit: int = 2048
) -> list[LabelledRow]:
    options = {"mask_prompt": mask_prompt, "max_seq_length": limit}
    return list(labelled(*encoder_of(Dataset.read(file), tokenizer, None, "train", **options)))


def totals_of(rows: list[LabelledRow]) -> Totals:
    totals = Totals()
    for row in rows:
        totals.add(row)
    return totals


def chat(question: str, answer: str) -> str:
    roles = (("user", question), ("assistant", answer))
    messages = [{"role": role, "content": text} for role, text in roles]
    return json.dumps({"messages": messages}) + "\n"


@pytest.mark.parametrize("mask_prompt", [False, True])
def test_targets_are_those_of_mlx_lm(tokenizer: Tokenizer, mask_prompt: bool) -> None:
    from mlx_lm import load
    from mlx_lm.tuner.datasets import ChatDataset

    rows = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
    theirs = ChatDataset(rows, load(str(BASE))[1], mask_prompt=mask_prompt)
    count = 0
    ours = rows_of(DATA / "train.jsonl", tokenizer, mask_prompt)
    for at, each in enumerate(ours):
        tokens, offset = theirs.process(rows[at])
        row = each.row
        assert row is not None
        assert row.tokens.tolist() == list(tokens)
        # Position 0 has nothing before it that could predict it.
        assert row.targets.tolist() == list(tokens)[max(offset, 1) :]
        count += len(row.targets)
    totals = totals_of(ours)
    assert totals.rows == len(rows)
    assert totals.targets == count
    assert sum(totals.by_role.values()) == count
    assert totals.problems == {}


def test_spans_give_the_row_back(tokenizer: Tokenizer) -> None:
    for each in rows_of(DATA / "train.jsonl", tokenizer, True, 40)[:20]:
        row = each.row
        assert row is not None
        runs = spans(row)
        assert [token for _, _, ids in runs for token in ids] == row.tokens.tolist()
        trained = [token for _, on, ids in runs if on for token in ids]
        assert trained == row.targets.tolist()
        assert all(role != "cut" or not on for role, on, _ in runs)
        assert all(one[:2] != two[:2] for one, two in pairwise(runs))


def test_what_goes_wrong_is_counted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(
        chat("Short?", "Yes.")
        + chat("Who?", "A very long answer indeed. " * 20)
        + chat("Why? " * 40, "Because.")
        + "{ not json\n"
        + "\n"
        + json.dumps({"messages": "none"})
        + "\n"
    )
    totals = totals_of(rows_of(file, tokenizer, True, 48))
    assert totals.rows == 6
    assert totals.problems == {
        "answer cut by the limit": 2,
        "no target at all": 1,
        "cannot be tokenized": 3,
    }
    assert totals.lines["no target at all"] == [3]
    assert totals.lines["cannot be tokenized"] == [4, 5, 6]


def test_roles_are_told_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(chat("Short?", "Yes."))
    (each,) = rows_of(file, tokenizer)
    row = each.row
    assert row is not None
    ends = np.isin(row.tokens, tokenizer.eos_token_ids)
    last = int(np.flatnonzero(ends)[-1])
    assert row.roles[last] == Role.END
    answer = row.tokens[row.roles == Role.ANSWER].tolist()
    assert tokenizer.decode(answer) == "Yes."


def test_unusable_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(data: Path) -> str:
        assert main(["labels", str(data), "--base", str(BASE)]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "has no train.jsonl" in refused(tmp_path)
    (tmp_path / "valid.jsonl").write_text(chat("a", "b"))
    assert "has no train.jsonl; it has valid: name one of them" in refused(tmp_path)
    (tmp_path / "train.jsonl").touch()
    assert "has no rows" in refused(tmp_path)
    (tmp_path / "odd.jsonl").write_text('{"question": "a"}\n')
    assert "has rows in a format that mlx-lm does not know" in refused(tmp_path / "odd.jsonl")


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = FIXTURES / "runs" / "healthy-ordinary"
    options = ["--base", str(BASE), "--config", str(run), "--log", str(run / "train.log")]
    assert main(["labels", str(DATA), *options, "--rows", "1"]) == 0
    shown = capsys.readouterr().out
    assert "[[<|im_end|>]]" in shown
    assert "200 rows, 11,466 tokens, 11,266 of them targets" in shown
    assert main(["labels", str(DATA), *options, "--format", "json", "--mask-prompt"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["mask_prompt"] is True
    assert set(data["totals"]["targets_by_role"]) == {"answer", "end", "other"}
    assert [one["line"] for one in data["rows"]] == [1, 2, 3]


def test_a_log_that_counted_prompts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = FIXTURES / "runs" / "targets-with-prompt"
    options = ["--base", str(BASE), "--config", str(run), "--log", str(run / "train.jsonl")]
    assert main(["labels", str(DATA), *options]) == 1
    assert "[trained-tokens.prompt-counted]" in capsys.readouterr().out


def test_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labels", str(DATA), "--base", str(BASE), "--no-text"]) == 0
    assert "Dedunia" not in capsys.readouterr().out
