"""Labels of every row: against mlx-lm's own mask, by hand, and on data that go wrong."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.cli import main
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.labels import label_rows
from mlxdoctor.labels.label_rows import LabelRules, Totals, data_file, spans, stream
from mlxdoctor.safety.errors import InputError

FIXTURES = Path(__file__).parents[2] / "fixtures"
BASE, DATA = FIXTURES / "base", FIXTURES / "data" / "geography"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.read(BASE)


def totals_of(file: Path, tokenizer: Tokenizer, rules: LabelRules) -> Totals:
    totals = Totals()
    for labelled in stream(file, tokenizer, rules):
        totals.add(labelled, tokenizer.eos_token_ids, tokenizer.bos_token_id)
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
    rules = LabelRules.of(None, mask_prompt)
    for at, labelled in enumerate(stream(DATA / "train.jsonl", tokenizer, rules)):
        tokens, offset = theirs.process(rows[at])
        row = labelled.row
        assert row is not None
        assert row.tokens.tolist() == list(tokens)
        # Position 0 has nothing before it that could predict it.
        assert row.targets.tolist() == list(tokens)[max(offset, 1) :]
        count += len(row.targets)
    totals = totals_of(DATA / "train.jsonl", tokenizer, rules)
    assert totals.rows == len(rows)
    assert totals.targets == count
    assert sum(totals.by_role.values()) == count
    assert totals.problems == {}


def test_spans_give_the_row_back(tokenizer: Tokenizer) -> None:
    rules = LabelRules.of(None, True, 40)
    for labelled in list(stream(DATA / "train.jsonl", tokenizer, rules))[:20]:
        row = labelled.row
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
    totals = totals_of(file, tokenizer, LabelRules.of(None, True, 48))
    assert totals.rows == 5
    assert totals.problems == {
        "longer than the limit": 2,
        "answer cut by the limit": 2,
        "end token cut by the limit": 2,
        "no target at all": 1,
        "cannot be tokenized": 2,
    }
    assert totals.lines["no target at all"] == [3]
    assert totals.lines["cannot be tokenized"] == [4, 6]


def test_roles_are_told_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(chat("Short?", "Yes."))
    (labelled,) = stream(file, tokenizer, LabelRules.of(None))
    assert labelled.row is not None
    ends = np.isin(labelled.row.tokens, tokenizer.eos_token_ids)
    last = int(np.flatnonzero(ends)[-1])
    assert labelled.row.roles[last] == Role.END
    answer = labelled.row.tokens[labelled.row.roles == Role.ANSWER].tolist()
    assert tokenizer.decode(answer) == "Yes."


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    import tracemalloc

    file = tmp_path / "train.jsonl"
    peaks = []
    for count in (200, 2000):
        file.write_text(chat("Short?", "Yes, it is short. " * 4) * count)
        tracemalloc.start()
        assert totals_of(file, tokenizer, LabelRules.of(None)).rows == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_unusable_data(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"has no train.jsonl"):
        data_file(tmp_path, "train")
    (tmp_path / "valid.jsonl").write_text(chat("a", "b"))
    with pytest.raises(InputError, match=r"it has valid: name one with --split"):
        data_file(tmp_path, "train")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="is empty"):
        list(stream(tmp_path / "empty.jsonl", tokenizer, LabelRules.of(None)))
    (tmp_path / "odd.jsonl").write_text('{"question": "a"}\n')
    with pytest.raises(InputError, match="has rows with the keys question"):
        list(stream(tmp_path / "odd.jsonl", tokenizer, LabelRules.of(None)))
    monkeypatch.setattr(label_rows, "MAX_LINE_BYTES", 1000)
    (tmp_path / "long.jsonl").write_text(chat("a", "b") + chat("a", "b" * 1000))
    with pytest.raises(InputError, match="has over 1,000 bytes in line 2; write one row a line"):
        list(stream(tmp_path / "long.jsonl", tokenizer, LabelRules.of(None)))


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
