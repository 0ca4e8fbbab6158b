"""Runs of other trainers, replayed: each reading is found where a trainer did what it says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import rows_of, write_config, write_rows
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.models.load import LoadedModels, Which
from mlxdoctor.run import Run
from mlxdoctor.twin import bench, train
from mlxdoctor.twin.levels import misfit
from mlxdoctor.twin.masked_loss import evaluate, exact_loss
from mlxdoctor.twin.prepared import parts_of
from mlxdoctor.twin.readings import Reading, readings
from mlxdoctor.twin.replay import Replay
from mlxdoctor.twin.rerun import AsConfigured
from tests.conftest import FIXTURES, check_called
from tests.edits import change_json
from tests.reproduce.real import settings as settings_of
from tests.twin.small import small_settings

pytestmark = pytest.mark.slow

EVERY, ITERATIONS = 4, 12
LORA = {"rank": 4, "scale": 20.0, "dropout": 0.0}


def made(folder: Path, reading: Reading | None = None, **values: Any) -> Run:
    """A run of a trainer that computes what a reading says, and the log that it printed."""
    data = write_rows(folder / "data", train=rows_of()[:60], valid=rows_of("valid")[:16])
    usual = {"data": str(data), "iters": ITERATIONS, "lora_parameters": LORA, "train": True}
    usual |= {"steps_per_report": EVERY, "val_batches": -1}
    settings = settings_of(folder / "adapters", **{**usual, **values})
    changed = reading.apply(settings, parts_of(settings)) if reading is not None else None
    if reading is not None and changed is None:
        pytest.skip("not another run")
    result = train(*(changed[:1] if changed else (settings,)), parts=changed and changed[1])
    told = [step.train_loss for step in result.steps]
    lines = [f"Iter 1: Val loss {result.validations[0].val_loss:.3f}, Val took 1.000s"]
    for last in range(EVERY, settings.iters + 1, EVERY):
        mean = sum(told[last - EVERY : last]) / EVERY
        lines.append(f"Iter {last}: Train loss {mean:.3f}, Learning Rate 3.000e-04, It/sec 1.0")
    lines.append(
        f"Iter {settings.iters}: Val loss {result.validations[-1].val_loss:.3f}, Val took 1.000s"
    )
    (folder / "adapters" / "train.log").write_text("\n".join(lines) + "\n")
    # The configuration says what was meant.
    (folder / "adapters" / "metrics.jsonl").unlink()
    write_config(folder / "adapters", **settings.stated())
    return Run.discover([folder / "adapters"], budget=240)


def reading_of(code: str) -> Reading:
    """The first reading with this code."""
    return next(each for each in readings() if each.code == code)


def replayed(run: Run) -> Replay:
    return run.need(Replay)


@pytest.mark.parametrize("mask", [False, True])
def test_a_sound_run_agrees_with_its_twin(tmp_path: Path, mask: bool) -> None:
    replay = replayed(made(tmp_path, mask_prompt=mask))
    assert [level.what for level in replay.configured] == ["before", *["report"] * 3, "after"]
    assert all(abs(level.off) < 1e-3 for level in replay.configured[:-1])
    assert replay.reading is None
    assert misfit(replay.best) == 0.0
    # The start needs no file that was saved.
    for file in (tmp_path / "adapters").glob("*.safetensors"):
        file.unlink()
    alone = replayed(Run.discover([tmp_path / "adapters"], budget=240))
    assert alone.configured == replay.configured[:-1]


def test_where_there_is_little_time_few_batches_tell_a_loss_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path, batch_size=1)
    monkeypatch.setattr("mlxdoctor.twin.bench.OF_THE_TIME", 0.0)
    replay = replayed(run)
    (before,) = (level for level in replay.configured if level.what == "before")
    # 8 of 16 batches: another loss than the log's, and no disagreement.
    assert 0.0 < abs(before.off) < before.tolerance
    assert misfit(replay.configured) == 0.0
    assert replay.reading is None
    # Fewer tell nothing.
    late = Run.discover(run.files.roots, budget=1e-3)
    with pytest.raises(Missing, match="time was over"):
        late.need(Replay)


@pytest.mark.long
def test_without_a_validation_another_optimiser_is_no_other_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reports agree by chance with those of a quantised base."""
    some = [each for each in readings() if "padding token" in each.clause or "bits" in each.clause]
    monkeypatch.setattr("mlxdoctor.twin.replay.readings", lambda: some)
    made(tmp_path, learning_rate=6e-4)
    folder = tmp_path / "adapters"
    change_json(folder / "adapter_config.json", learning_rate=3e-4)
    log = folder / "train.log"
    log.write_text("\n".join(each for each in log.read_text().splitlines() if "Val" not in each))
    replay = replayed(Run.discover([folder], budget=240))
    assert misfit(replay.configured) > 0.0
    assert replay.reading is None or replay.reading.sound


def test_the_scale_that_it_was_trained_at_is_read_off_its_end(tmp_path: Path) -> None:
    made(tmp_path)
    folder = tmp_path / "adapters"
    change_json(folder / "adapter_config.json", lora_parameters={**LORA, "scale": 2.0})
    scale = replayed(Run.discover([folder])).scale
    # The last validation comes before the last update, which is one of twelve.
    assert scale.configured == 2.0
    assert 16.0 <= scale.agreeing <= 32.0


def test_the_scale_is_read_off_the_end_of_a_trainer_of_its_own(tmp_path: Path) -> None:
    """It counts steps, masks prompts unasked, and its configuration says no more than the scale."""
    made(tmp_path, reading_of("answers-alone"))
    folder = tmp_path / "adapters"
    lines = (folder / "train.log").read_text().splitlines()
    first, last = (line.split()[4].rstrip(",") for line in (lines[0], lines[-1]))
    reports = [f"step {line.split()[1]} | loss {line.split()[4]}" for line in lines[1:-1]]
    own = [f"step 0 | val {first}", *reports, f"step {ITERATIONS} | val {last}"]
    (folder / "train.log").write_text("\n".join(own).replace(":", "").replace(",", "") + "\n")
    lora = {**LORA, "scale": 160.0}
    write_config(folder, fine_tune_type="lora", num_layers=-1, lora_parameters=lora)
    run = Run.discover([folder], base=FIXTURES / "base", data=tmp_path / "data", budget=240)
    replay = replayed(run)
    assert replay.reading.sound
    assert replay.scale.configured == 160.0
    assert 16.0 <= replay.scale.agreeing <= 32.0


def test_of_a_log_that_has_the_end_alone_three_digits_tell_its_kind(tmp_path: Path) -> None:
    """Of a trainer of its own, whose file does not state how it trained: nothing is assumed."""
    made(tmp_path, reading_of("answers-alone"))
    folder = tmp_path / "adapters"
    whole = (folder / "adapter_config.json").read_text()
    stated = {"num_layers": -1, "learning_rate": 3e-4, "batch_size": 4}
    write_config(folder, **stated, lora_parameters=LORA)
    named = {"base": FIXTURES / "base", "data": tmp_path / "data", "budget": 240}

    def logged(*validations: float, first: float = 2.5) -> Replay:
        steps = [f"step {step} loss {first}" for step in (10, 20, 30)]
        ends = [
            f"epoch {at}: train {first} valid {loss:.4f}" for at, loss in enumerate(validations, 1)
        ]
        lines = [line for pair in zip(steps, ends, strict=False) for line in pair]
        (folder / "train.log").write_text("\n".join(lines) + "\n")
        return replayed(Run.discover([folder], **named))

    # No sound reading gives it.
    replay = logged(3.0, 2.0, 0.5)
    assert replay.reading is None
    assert replay.saved_at is None
    (level,) = logged(3.0, 2.0, ended := _loss_of_answers(folder, **named)).best
    assert abs(level.off) < 1e-3
    # A faulty one does, where no usual loss of the model is near it.
    skipping = reading_of("token-after-the-next")
    shown = logged(3.0, 2.0, _loss_of_answers(folder, skipping, **named))
    assert shown.reading.code == skipping.code
    run = Run.discover([folder], **named)
    assert [each.code for each in check_called("replay").run(run).findings] == [
        f"replay.{skipping.code}"
    ]
    # Reports that no training gives do not hide it.
    (folder / "adapter_config.json").write_text(whole)
    shown = logged(3.0, 2.0, _loss_of_answers(folder, skipping, **named), first=9.0)
    assert any(level.what == "report" for level in shown.configured)
    assert shown.reading.code == skipping.code
    write_config(folder, **stated, lora_parameters=LORA)
    # The model of the second validation was saved: to be the best one, or by mistake.
    for last, code in ((2.0 * ended, "as-logged"), (0.5, "saved-earlier")):
        assert logged(3.0, ended, last).saved_at == 20
        run = Run.discover([folder], **named)
        assert [each.code for each in check_called("end-state").run(run).findings] == [
            f"end-state.{code}"
        ]
    write_config(folder, **stated, lora_parameters={**LORA, "scale": 160.0})
    scale = logged(3.0, 2.0, ended).scale
    assert (scale.configured, scale.agreeing) == (160.0, 20.0)
    # The base model alone has it: it holds what was trained if the log begins far above it.
    of_base = _loss_of_answers(folder, which="base", **named)
    scale = logged(3.0, 2.0, of_base, first=3 * of_base).scale
    assert scale.agreeing == 0.0
    scale = logged(3.0, 2.0, of_base, first=of_base).scale
    assert scale is None or scale.agreeing > 0.0


def _loss_of_answers(
    folder: Path, reading: Reading | None = None, *, which: Which = "tuned", **named: Any
) -> float:
    """A model's loss on the answers of the validation rows, or as a reading has it."""
    run = Run.discover([folder], **named)
    usual = run.need(AsConfigured)
    settings = replace(usual.settings, mask_prompt=True)
    parts = replace(usual.parts, loss=exact_loss)
    if reading is not None:
        settings, parts = reading.apply(settings, parts) or (settings, parts)
    rows = parts.encode(settings, None).valid
    model = run.need(LoadedModels).select(which)
    return evaluate(model, parts.batches(settings).evaluation(rows, -1), parts.loss)


def test_prompts_and_completions_were_masked_as_conversations_were(tmp_path: Path) -> None:
    rows = [{"frage": f"Wo liegt {name}?", "antwort": "Im Norden."} for name in ("Ara", "Bo")]
    for split in ("train", "valid"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{split}.jsonl").write_text(lines)
    named = {"prompt_feature": "frage", "completion_feature": "antwort"}
    settings = small_settings(tmp_path, data=str(tmp_path), **named)
    reading = reading_of("answers-with-their-header")
    assert reading.apply(settings, parts_of(settings)) is not None


@pytest.mark.parametrize("mask", [False, True])
def test_older_versions_adapt_and_mask_otherwise(tmp_path: Path, mask: bool) -> None:
    """As mlx-lm did before 0.28: queries and values alone, and answers with what opens them."""
    header = reading_of("answers-with-their-header")
    keys = ["self_attn.q_proj", "self_attn.v_proj"]
    reading = header if mask else None
    made(tmp_path, reading, mask_prompt=mask, lora_parameters={**LORA, "keys": keys})
    change_json(tmp_path / "adapters" / "adapter_config.json", lora_parameters=LORA)
    run = Run.discover([tmp_path / "adapters"], budget=240)
    replay = replayed(run)
    assert misfit(replay.configured) > 0.0
    assert replay.reading.sound
    assert replay.reading.code == "modules-of-the-file"
    assert (header.clause in replay.reading.clause) is mask
    assert all(abs(level.off) < 1e-3 for level in replay.best[:-1])
    assert not check_called("replay").run(run).findings


#: The saved adapter of so short a run changes its base too little.
FAULTY = [each for each in readings() if not each.sound and each.code != "adapter-in-the-base"]
#: One reading of each code.
CASES = list({each.code: each for each in FAULTY if "<|im_start|>" not in each.clause}.values())


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "reading", [each for each in readings() if each.sound], ids=lambda each: each.clause
)
def test_a_sound_trainer_of_another_kind_is_sound(tmp_path: Path, reading: Reading) -> None:
    run = made(tmp_path, reading)
    found = replayed(run).reading
    assert found is None or found.sound
    findings = check_called("replay").run(run).findings
    assert {finding.severity.value for finding in findings} <= {"info"}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("reading", CASES, ids=lambda each: each.clause)
def test_what_a_trainer_did_is_read_off_its_log(tmp_path: Path, reading: Reading) -> None:
    run = made(tmp_path, reading, mask_prompt=reading.code == "prompt-in-the-loss")
    replay = replayed(run)
    assert replay.reading.code == reading.code
    codes = [each.code for each in check_called("replay").run(run).findings]
    assert codes == [f"replay.{reading.code}"]


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("base-trained-along", {"batch_size": 1, "learning_rate": 1e-5}),
        ("row-mean", {"val_batches": 2}),
    ],
)
def test_exact_reports_tell_what_is_within_the_noise_of_batches(
    tmp_path: Path, code: str, values: dict[str, Any]
) -> None:
    (reading,) = (each for each in readings() if each.code == code)
    replay = replayed(made(tmp_path, reading, **values))
    assert misfit(replay.configured) == 0.0
    assert replay.reading.code == code


def test_a_validation_of_an_unsaid_size_may_have_had_few_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four batches are all of these rows.
    monkeypatch.setattr(bench, "UNSAID", 2)
    run = made(tmp_path, val_batches=2, batch_size=2, num_layers=1)
    log, base, data = tmp_path / "adapters" / "train.log", run.files.base, run.files.data
    alone = Run.discover([log], base=base, data=data, budget=60).need(Replay)
    (before,) = (level for level in alone.configured if level.what == "before")
    assert abs(before.off) > 0.02
    assert before.misfit == 0.0
