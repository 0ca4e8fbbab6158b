"""Each fault of the incident reports, as people write it, and its sound twin."""

from pathlib import Path

import pytest

from fixtures.trainers import twins, write_twins
from mlxdoctor.lint.linter import lint
from mlxdoctor.measure.training_step.trainer import load_trainer
from mlxdoctor.probe import probe
from mlxdoctor.probe.probing import ProbeResult
from tests.probe.conftest import codes

#: Trainer -> (the probe's code, the linter's; None where syntax cannot show it).
FAULTS: dict[str, tuple[str | None, str | None]] = {
    "accumulator_reset": ("step-update.parts-lost", None),
    "adapter_flag": ("step-state.no-adapter", "adapter-flag"),
    "channels_first": ("step-update.no-loss", None),
    "closed_over_model": ("step-update.unchanged", "gradient-of-module"),
    "converter": ("step-state.no-adapter", "module-dict-walk"),
    "end_is_padding": ("step-alignment.no-end-token", None),
    "flattened_filter": ("step-update.unchanged", None),
    "freeze_after": ("step-state.frozen", "adapter-without-freeze"),
    "gradient_filter": ("step-update.unchanged", "outermost-name-filter"),
    "last_call_counts": ("step-update.parts-lost", None),
    "module_gradient": ("step-update.failed", "gradient-of-module"),
    "no_freeze": ("step-state.outside-adapter", "adapter-without-freeze"),
    "own_trainable": ("step-state.own-bookkeeping", "own-trainable-parameters"),
    "padding_counts": ("step-alignment.padding-trained", None),
    # It fails before there is anything to probe, and says why itself.
    "parameter_count": (None, None),
    "shifted_twice": ("step-alignment.misaligned", None),
    "targets_identity": ("step-alignment.misaligned", "unshifted-targets"),
    "unguarded_division": ("step-update.starts-not-finite", "unguarded-mean"),
}


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twins(tmp_path_factory.mktemp("trainers"))


def probed(path: Path) -> ProbeResult:
    trainer, _ = load_trainer(f"{path}.py:parts")
    return probe(
        trainer.model,
        trainer.loss_fn,
        trainer.batch,
        trainer.optimizer,
        trainer.tokenizer,
        step=trainer.step,
    )


def test_every_trainer_is_listed() -> None:
    assert twins().keys() == FAULTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (code, _) in FAULTS.items() if code])
def test_the_probe_finds_each_fault(trainers: Path, name: str) -> None:
    assert FAULTS[name][0] in codes(probed(trainers / "faulty" / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_probe_passes_each_twin(trainers: Path, name: str) -> None:
    result = probed(trainers / "sound" / name)
    assert not codes(result)
    assert result.sound
    assert not result.unjudged


@pytest.mark.parametrize("rows", [1, 4])
def test_an_update_that_takes_more_calls_than_were_asked_for_is_made(
    trainers: Path, rows: int
) -> None:
    trainer, _ = load_trainer(f"{trainers / 'sound' / 'last_call_counts'}.py:parts")
    batch = tuple(part[:rows] for part in trainer.batch)
    result = probe(
        trainer.model, trainer.loss_fn, batch, trainer.optimizer, step=trainer.step, steps=1
    )
    update = result.measured.update
    assert update is not None
    assert update.steps == 2
    assert all(each.change for each in update.parameters if each.gradient_norm)
    assert "step-update.unchanged" not in codes(result)


@pytest.mark.parametrize("name", FAULTS)
def test_the_linter_finds_what_syntax_can_show(trainers: Path, name: str) -> None:
    wanted = FAULTS[name][1]
    found = [hit.code for hit in lint([trainers / "faulty" / f"{name}.py"])]
    assert found == ([wanted] if wanted else [])
    assert lint([trainers / "sound" / f"{name}.py"]) == []
