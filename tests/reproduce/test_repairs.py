"""Rows that are left out, and batches that are padded as findings say."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fixtures.lab.cases.workshop import rows_of, write_rows
from fixtures.lab.faults import FAULTS
from mlxdoctor.causes import load_causes
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.reproduce.bench import Failure
from mlxdoctor.reproduce.changes import Cure, cure_of, padding_shown
from mlxdoctor.reproduce.repairs import (
    mends_all,
    others_left_out,
    repaired,
    rows_left_out,
)
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.batches import Batch, Batches
from mlxdoctor.twin.faults import supervised_padding
from mlxdoctor.twin.prepared import parts_of
from tests.checks.data_evidence import chat
from tests.reproduce.real import settings


@pytest.mark.parametrize(
    ("severity", "measured", "tokens"),
    [
        (Severity.ERROR, {"pad_id": 7}, (7,)),
        (Severity.ERROR, {}, ()),
        (Severity.INFO, {"pad_id": 7}, ()),
    ],
)
def test_padding_is_the_token_that_the_findings_show(
    severity: Severity, measured: dict[str, Any], tokens: tuple[int, ...]
) -> None:
    code = "learned-targets.padding-learned"
    finding = Finding(code=code, severity=severity, message="", measured=measured)
    outcome = Outcome("learned-targets", Status.FOUND, findings=(finding,))
    assert padding_shown(Failure((outcome,), (0, 1), 50)) == tokens


def test_every_place_of_a_batch_is_filled_and_supervised(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    batch = Batch(
        np.array([[5, 6, 7, 0], [5, 0, 0, 0]], np.int32), np.array([[1, 3], [1, 1]], np.int32), (0,)
    )
    made = Batches(lambda *_: iter([batch]), lambda *_: iter([batch]))
    parts = replace(parts_of(plain), batches=lambda *_: made)
    _, changed = FAULTS["padding-in-batch"].inject(plain, 9, parts)
    (filled,) = changed.batches(plain).train(())
    assert filled.tokens.tolist() == [[5, 6, 7, 9], [5, 9, 9, 9]]
    assert filled.spans.tolist() == [[1, 4], [1, 4]]
    assert batch.spans.tolist() == [[1, 3], [1, 1]]
    (wide,) = supervised_padding(parts, 9, 6).batches(plain).evaluation((), 1)
    assert wide.tokens.shape == (2, 6)
    assert wide.spans[:, 1].tolist() == [6, 6]


def test_what_was_trained_along_is_left_out_of_what_is_saved(tmp_path: Path) -> None:
    layer = "model.layers.0.self_attn.q_proj"
    tensors = {
        f"{layer}.lora_a": np.ones((4, 2), "f4"),
        f"{layer}.lora_b": np.ones((2, 4), "f4"),
        f"{layer}.linear.weight": np.ones((4, 4), "f4"),
        "model.norm.weight": np.ones(4, "f4"),
    }
    for name in ("adapters.safetensors", "0000010_adapters.safetensors"):
        save_file(tensors, tmp_path / name)
    FAULTS["base-trained-along"].finish(tmp_path, settings(tmp_path))
    for name in ("adapters.safetensors", "0000010_adapters.safetensors"):
        assert load_file(tmp_path / name).keys() == {f"{layer}.lora_a", f"{layer}.lora_b"}


FLAWED = [
    chat("a", "1"),
    chat("a", "1"),
    chat("d", "cafÃ©"),
    chat("e", "lost \ufffd"),
    chat("f", "café"),
    chat("g", "4"),
    chat("h", "5"),
    chat("i", "6"),
]


@pytest.mark.slow
def test_exactly_the_rows_in_question_are_repaired(tmp_path: Path) -> None:
    dataset = Dataset.read(write_rows(tmp_path / "data", train=FLAWED, valid=FLAWED[4:]))
    assert repaired(dataset.splits["train"]).keys() == {2, 3}
    assert not repaired(dataset.splits["valid"])


@pytest.mark.slow
def test_rows_are_left_out_of_a_copy_and_as_many_at_random(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data", train=FLAWED, valid=FLAWED)
    before = (data / "train.jsonl").read_bytes()
    kept = {}
    for fault in (rows_left_out, others_left_out):
        out = tmp_path / fault.id
        plain = settings(out, data=str(data), batch_size=2)
        changed, _ = fault.inject(plain)
        kept[fault.id] = rows_of(data=Path(changed.data))
        assert Path(changed.data, "valid.jsonl").read_bytes() == before
    named, chance = kept.values()
    assert named == [one for at, one in enumerate(FLAWED) if at not in (2, 3)]
    assert len(chance) == len(named)
    assert chance != named
    assert (data / "train.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "refused"), [(6, False), (7, True)])
def test_fewer_than_a_batch_left_is_refused(tmp_path: Path, batch: int, refused: bool) -> None:
    data = write_rows(tmp_path / "data", train=FLAWED, valid=FLAWED)
    plain = settings(tmp_path / "out", data=str(data), batch_size=batch)
    if not refused:
        changed, _ = rows_left_out.inject(plain)
        assert len(rows_of(data=Path(changed.data))) == 6
        return
    with pytest.raises(InputError, match="6 rows left"):
        rows_left_out.inject(plain)


@pytest.mark.slow
def test_what_an_export_left_is_mended(tmp_path: Path) -> None:
    """The tags hide that signs are escaped; nobody knows what stood for an empty cell."""
    answers = [f"<p>It&nbsp;is {at} &amp; {at}.</p>" for at in range(18)] + ["nan", "nan"]
    rows = [{"prompt": f"What is {at}?", "completion": text} for at, text in enumerate(answers)]
    data = write_rows(tmp_path / "data", train=rows, valid=rows)
    changed, _ = rows_left_out.inject(settings(tmp_path / "out", data=str(data)))
    kept = [row["completion"] for row in rows_of(data=Path(changed.data))]
    assert kept == [f"It is {at} & {at}." for at in range(18)]
    assert not mends_all(settings(tmp_path / "out", data=str(data)))
    # Rows that are mended all would leave a placebo with nothing left out, which can't fail.
    clean = write_rows(tmp_path / "clean", train=rows[:18], valid=rows[:18])
    assert mends_all(settings(tmp_path / "out", data=str(clean)))


CAUSES = load_causes().causes


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_an_experiment_or_a_reason(name: str) -> None:
    cause = CAUSES[name]
    has_rerun = cause.change or cause.leave_out or cause.inject
    assert cause.no_experiment or cause.shown_by_diagnosis or has_rerun


def test_experiments_are_for_known_causes_with_known_faults() -> None:
    assert {name for cause in CAUSES.values() for name in cause.inject} <= FAULTS.keys()


def test_rows_that_findings_name_are_left_out(tmp_path: Path) -> None:
    def cure(code: str) -> Any:
        failure = SimpleNamespace(findings=[SimpleNamespace(code=code)], iterations=9)
        lab = SimpleNamespace(settings=settings(tmp_path))
        bench: Any = SimpleNamespace(failure=failure, lab=lab)
        return cure_of(bench, CAUSES["bad-data"])

    found = cure("data-quality.leftovers")
    assert [change.fault for change in found.changes] == [rows_left_out]
    assert found.placebo.fault is others_left_out
    assert not isinstance(cure("data-quality.duplicates"), Cure)
