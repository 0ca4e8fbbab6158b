"""Which rows a repair leaves out, and what it writes."""

from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import rows_of, write_rows
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.reproduce.repairs import mends_all, named_rows, others_left_out, rows_left_out
from mlxdoctor.safety.errors import InputError
from tests.checks.data_evidence import chat
from tests.reproduce.real import settings

pytestmark = pytest.mark.slow

ROWS = [
    chat("a", "1"),
    chat("a", "1"),
    chat("b", "2"),
    chat("b", "3"),
    chat("c", " "),
    chat("d", "cafÃ©"),
    chat("e", "lost \ufffd"),
    chat("f", "café"),
    {"text": "another format"},
]


@pytest.mark.parametrize(
    ("what", "places"),
    [
        ("duplicates", {1}),
        ("contradictory", {2, 3}),
        ("empty", {4}),
        ("leftovers", {5, 6}),
        ("other format", {8}),
    ],
)
def test_exactly_the_rows_in_question_are_named(
    tmp_path: Path, what: str, places: set[int]
) -> None:
    dataset = Dataset.read(write_rows(tmp_path / "data", train=ROWS, valid=ROWS))
    assert named_rows(dataset.splits["train"], (what,)) == places
    assert named_rows(dataset.splits["train"], ()) == frozenset()


def test_rows_are_left_out_of_a_copy_and_as_many_at_random(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data", train=ROWS, valid=ROWS)
    before = (data / "train.jsonl").read_bytes()
    kept = {}
    for fault in (rows_left_out, others_left_out):
        out = tmp_path / fault.id
        plain = settings(out, data=str(data), batch_size=2)
        changed, _ = fault.inject(plain, ("duplicates", "leftovers"))
        kept[fault.id] = rows_of(data=Path(changed.data))
        assert Path(changed.data, "valid.jsonl").read_bytes() == before
    named, chance = kept.values()
    assert named == [one for at, one in enumerate(ROWS) if at not in (1, 5, 6)]
    assert len(chance) == len(named)
    assert chance != named
    assert (data / "train.jsonl").read_bytes() == before


@pytest.mark.parametrize(("batch", "refused"), [(6, False), (7, True)])
def test_fewer_than_a_batch_left_is_refused(tmp_path: Path, batch: int, refused: bool) -> None:
    data = write_rows(tmp_path / "data", train=ROWS, valid=ROWS)
    plain = settings(tmp_path / "out", data=str(data), batch_size=batch)
    what = ("duplicates", "leftovers")
    if not refused:
        changed, _ = rows_left_out.inject(plain, what)
        assert len(rows_of(data=Path(changed.data))) == 6
        return
    with pytest.raises(InputError, match="6 rows left"):
        rows_left_out.inject(plain, what)


def test_what_an_export_left_is_mended(tmp_path: Path) -> None:
    """The tags hide that signs are escaped; nobody knows what stood for an empty cell."""
    answers = [f"<p>It&nbsp;is {at} &amp; {at}.</p>" for at in range(18)] + ["nan", "nan"]
    rows = [{"prompt": f"What is {at}?", "completion": text} for at, text in enumerate(answers)]
    data = write_rows(tmp_path / "data", train=rows, valid=rows)
    changed, _ = rows_left_out.inject(settings(tmp_path / "out", data=str(data)), ("leftovers",))
    kept = [row["completion"] for row in rows_of(data=Path(changed.data))]
    assert kept == [f"It is {at} & {at}." for at in range(18)]
    assert not mends_all(settings(tmp_path / "out", data=str(data)), ("leftovers",))
    # Rows that are mended all would leave a placebo with nothing left out, which can't fail.
    clean = write_rows(tmp_path / "clean", train=rows[:18], valid=rows[:18])
    assert mends_all(settings(tmp_path / "out", data=str(clean)), ("leftovers",))
