"""The supervised rows are those of mlx-lm's own batches and loss."""

import math

import numpy as np
import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.row_encoder import MOST_EARLIER
from mlxdoctor.evidence.supervision import Role, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.safety.errors import InputError
from tests.checks.data_evidence import BASE, DATA, config_of, mlx_lm_batches, rows_of, write_data

QUESTION = {"role": "user", "content": "Which lake is the largest in Dedunia?"}
ANSWER = {"role": "assistant", "content": "Lake Nevath, cold, deep and clear."}


def upstream_targets(data, mask_prompt, batch_size, max_seq_length):
    """Every batch of mlx-lm as a sorted list of (row's first tokens, its supervised targets)."""
    import mlx.core as mx
    from mlx_lm.tuner.trainer import default_loss

    found = []
    for batch, lengths in mlx_lm_batches(data, mask_prompt, batch_size, max_seq_length):
        seen = []

        def model(inputs, seen=seen):
            logits = mx.zeros((*inputs.shape, 768))
            seen.append(inputs.shape)
            return logits

        _, count = default_loss(model, batch, lengths)
        steps = np.arange(1, batch.shape[1])
        bounds = np.array(lengths)
        mask = (steps >= bounds[:, :1]) & (steps <= bounds[:, 1:])
        assert int(count.item()) == mask.sum()
        targets = np.array(batch)[:, 1:]
        rows = [tuple(row[keep].tolist()) for row, keep in zip(targets, mask, strict=True)]
        found.append((batch.shape[1], tuple(rows)))
    return sorted(found)


def our_targets(rows):
    found = []
    for batch in rows.batches:
        targets = []
        for position in batch:
            row = rows.rows[position]
            padding = (rows.pad_id,) if row.count() > len(row.targets) else ()
            assert row.count() == len(row.targets) + len(padding)
            targets.append((*row.targets.tolist(), *padding))
        found.append((rows.width(batch), tuple(targets)))
    return sorted(found)


CASES = [
    ("geography", False, 4, 2048),
    ("geography", True, 8, 48),
    ("geography", True, 1, 32),
    ("geography-empty", True, 4, 24),
    ("geography-text", False, 3, 64),
    ("geography-text", False, 7, 2048),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mask", "batch_size", "limit"), CASES)
def test_same_batches_widths_and_targets_as_mlx_lm(tmp_path, name, mask, batch_size, limit):
    data = DATA / name
    config = config_of(tmp_path, mask_prompt=mask, batch_size=batch_size, max_seq_length=limit)
    rows = rows_of(Dataset.read(data), config, limit=None)
    assert rows.examined_rows == 200 // batch_size * batch_size
    assert our_targets(rows) == upstream_targets(data, mask, batch_size, limit)


def test_rows_of_other_shapes_match_mlx_lm_too(tmp_path):
    long = {"role": "assistant", "content": "Far. " * 40}
    rows = [
        {"messages": [QUESTION, ANSWER], "source": "a"},
        {"messages": [QUESTION, ANSWER, QUESTION, long]},
        {"messages": [QUESTION, ANSWER, QUESTION], "source": "b", "id": 1},
        {"messages": [{"role": "system", "content": ""}, QUESTION, ANSWER], "tools": None},
        {"messages": [QUESTION, long]},
        {"messages": [QUESTION, ANSWER], "id": 7},
    ]
    data, roles = write_data(tmp_path, train=rows), {}
    for mask in (False, True):
        config = config_of(tmp_path, mask_prompt=mask, batch_size=2, max_seq_length=64)
        ours = rows_of(data, config)
        assert our_targets(ours) == upstream_targets(tmp_path / "data", mask, 2, 64)
        roles[mask] = {row.index: row.roles for row in ours.rows}[1]
    # Rows with fewer keys come first in mlx-lm's sort.
    assert [row.index for row in ours.rows] == [1, 4, 0, 3, 5, 2]
    by_index = {row.index: row for row in ours.rows}
    assert "earlier-answers-masked" in by_index[1].problems
    # Both answers are known as such, the questions between them are not; masked, the first is a
    # part of the prompt, and known as an earlier one.
    turn = [Role.PROMPT, Role.ANSWER, Role.END, Role.OTHER]
    for mask, first in ((False, turn), (True, [Role.PROMPT, Role.EARLIER_ANSWER])):
        changes = np.flatnonzero(np.diff(roles[mask])) + 1
        assert roles[mask][[0, *changes]].tolist() == first + turn
    first_end = np.flatnonzero(roles[False] == Role.END)[0]
    of_first = (roles[False] == Role.ANSWER) & (np.arange(len(roles[False])) < first_end)
    assert np.array_equal(roles[True] == Role.EARLIER_ANSWER, of_first)


def test_completions_are_chats(tmp_path):
    row = {"prompt": QUESTION["content"], "completion": ANSWER["content"]}
    data = write_data(tmp_path, train=[row] * 2)
    config = config_of(tmp_path, mask_prompt=True, batch_size=1)
    rows = rows_of(data, config)
    assert our_targets(rows) == upstream_targets(tmp_path / "data", True, 1, 2048)
    assert rows.format == "completions"


def test_roles_and_terminator():
    tokenizer = Tokenizer.read(BASE)
    rows = build(Dataset.read(DATA / "geography"), tokenizer, None)
    assert rows.terminator == (767, 198)
    assert rows.masking_is_default
    for row in rows.rows[:20]:
        assert row.prefix_matches
        assert row.offset == 0
        assert tokenizer.decode(row.tokens[row.roles == Role.PROMPT]).endswith("assistant\n")
        assert row.tokens[row.roles == Role.END].tolist() == [767]
        answer = tokenizer.decode(row.tokens[row.roles == Role.ANSWER])
        assert answer.endswith((".", "!"))
        assert "<|" not in answer


def test_earlier_answers_are_looked_for_before_the_cut_and_so_often_only(tmp_path):
    data = write_data(tmp_path, train=[{"messages": [QUESTION, ANSWER] * 40}])
    whole, cut = (
        rows_of(data, config_of(tmp_path, batch_size=1, max_seq_length=length))
        for length in (10_000, 100)
    )
    assert np.count_nonzero(whole.rows[0].roles == Role.END) == MOST_EARLIER + 1
    assert cut.rows[0].roles[:100].tolist() == whole.rows[0].roles[:100].tolist()
    assert "answers-truncated" in cut.rows[0].problems


def test_entropy_of_the_targets(tmp_path):
    tokenizer = Tokenizer.read(BASE)
    first, again, end = (*tokenizer.encode("~x"), tokenizer.eos_token_id)
    data = write_data(tmp_path, train=[{"text": "~x~x"}, {"text": "~~xx"}])
    rows = rows_of(data, config_of(tmp_path, batch_size=1))
    assert dict(rows.frequencies()) == {first: 2, again: 4, end: 2}
    assert rows.unigram_entropy() == pytest.approx(1.5 * math.log(2) + 1 / 8)
    assert rows.rows[0].count() == 5
    masked = config_of(tmp_path, mask_prompt=True, max_seq_length=8)
    rows = rows_of(Dataset.read(DATA / "geography"), masked)
    assert math.isnan(rows.unigram_entropy())
    assert all(row.count() == 0 for row in rows.rows)


def test_a_sample_takes_whole_batches_from_all_over_the_file():
    dataset = Dataset.read(DATA / "geography")
    rows = rows_of(dataset, None, limit=20)
    assert (rows.examined_rows, rows.total_rows) == (20, 200)
    assert [len(batch) for batch in rows.batches] == [4] * 5
    starts = [rows.rows[batch[0]].index for batch in rows.batches]
    assert starts == [0, 48, 96, 148, 196]


def test_refused_rows_are_named(tmp_path):
    rows = [
        {"messages": [QUESTION, ANSWER]},
        {"messages": []},
        {"messages": [{"role": "user"}, ANSWER]},
        {"text": "another format"},
        {"messages": [ANSWER]},
    ]
    dataset = write_data(tmp_path, train=rows)
    masked = rows_of(dataset, config_of(tmp_path, mask_prompt=True, batch_size=1))
    assert [row.index for row in masked.rows] == [0]
    assert [*masked.refused] == [1, 2, 3, 4]
    # Without the mask mlx-lm never renders the empty prompt of a lone answer.
    plain = rows_of(dataset, config_of(tmp_path, batch_size=1))
    assert [*plain.refused] == [1, 2, 3]


def test_fewer_rows_than_a_batch_are_still_examined(tmp_path):
    dataset = write_data(tmp_path, train=[{"messages": [QUESTION, ANSWER]}])
    rows = rows_of(dataset, None)
    assert (len(rows.rows), rows.batches) == (1, ())


def test_nothing_to_build_from(tmp_path):
    dataset = write_data(tmp_path, train=[{"question": "a"}])
    with pytest.raises(InputError, match="format that mlx-lm does not know"):
        rows_of(dataset, None)
    with pytest.raises(InputError, match=r"has no valid\.jsonl"):
        rows_of(dataset, None, split="valid")
