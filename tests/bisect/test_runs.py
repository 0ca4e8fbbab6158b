import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.bisect.answer import sentence
from mlxdoctor.evidence.adapter import Adapter
from tests.bisect.states import ZERO, bisected, changed, history, standings, state
from tests.conftest import RUNS, Copy
from tests.reproduce.real import trained
from tests.weight_files import save

#: The rate leaps after this iteration, in a run of so many.
LEAP, ITERATIONS, EVERY = 30, 60, 10


@pytest.fixture(scope="session")
def broken_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA run on the fixtures' model: sound until iteration 30, then at 40 times the rate."""
    return trained(
        tmp_path_factory.mktemp("broken") / "adapters",
        seed=5,
        batch_size=2,
        iters=ITERATIONS,
        lr_schedule={"name": "step_decay", "arguments": [5e-4, 40.0, LEAP]},
        steps_per_report=5,
        steps_per_eval=30,
        val_batches=4,
        save_every=EVERY,
    )


def test_a_break_between_two_saves_is_found_in_the_files(broken_run: Path) -> None:
    found = bisected(broken_run)
    assert standings(found.rows) == "gggbbbb"
    assert found.last_good == 2
    assert found.rows[2].path == broken_run / "0000030_adapters.safetensors"
    assert found.rows[2].path.is_file()
    assert not found.newest_is_good
    told = sentence(found)
    path = broken_run / "0000030_adapters.safetensors"
    assert told.startswith(
        f"Last good checkpoint: {path}; broken from 0000040_adapters.safetensors ("
    )
    onset = re.search(r"the log's loss blew up at iteration (\d+), from", told)
    assert LEAP < int(onset[1]) <= LEAP + EVERY


@pytest.mark.slow
def test_the_models_agree_after_a_few_loads(broken_run: Path) -> None:
    found = bisected(broken_run, model=True)
    assert found.last_good == 2
    assert found.split == "valid"
    assert not found.unmeasured
    # Six different files, of which those that exploded need not be loaded.
    assert 2 <= found.measured <= 5
    losses = {place: save.loss for place, save in found.behaviours.items()}
    assert losses[2] == min(losses.values()) < 3.0
    assert "none" not in sentence(found)


@pytest.mark.slow
def test_the_model_finds_what_log_and_sizes_do_not_show(
    broken_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the log, and with a scale that hides how large the update is.
    folder = tmp_path / "run"
    folder.mkdir()
    for number in (10, 20, 30, 40):
        name = f"{number:07d}_adapters.safetensors"
        shutil.copy(broken_run / name, folder / name)
    shutil.copy(broken_run / "adapter_config.json", folder)
    monkeypatch.setattr("mlxdoctor.judge.save_flaws.EXPLODED", 1e9)
    found = bisected(folder, model=True)
    assert standings(found.rows) == "gggb"
    assert found.last_good == 2
    assert ["bad-answers" in row.flaws for row in found.rows] == [False] * 3 + [True]
    assert "its answers" in found.rows[3].why


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("collapse-frequent-token", "lost before the first save, .* times as large as the weights"),
        ("scale-too-large", "lost before the first save, .* times as large as the weights"),
        ("b-never-trained", "nothing was trained: every B is exactly zero in all 3 files"),
    ],
)
def test_real_runs_without_a_good_save(name: str, expected: str) -> None:
    found = bisected(RUNS / name)
    assert (found.last_good, found.first_broken) == (None, 0)
    assert re.match(f"Last good checkpoint: none, (it was )?{expected}", sentence(found))


BAD = state(0.15, 1)
BAD["model.layers.0.self_attn.q_proj.lora_a"][0, 0] = np.nan


@pytest.mark.parametrize(
    ("states", "final", "told"),
    [
        (
            [ZERO, state(9.0)],
            None,
            "trained up to .*, and 0000200.* is broken .update about 9 times",
        ),
        (
            [state(0.1), BAD, state(0.2, 2)],
            None,
            r"the newest; broken before it: 0000200_adapters.safetensors \(1 of its",
        ),
        (
            [state(0.1), state(0.2, 1)],
            changed(state(0.2, 1), 1, 0.0),
            r"0000200_adapters.safetensors; broken from adapters.safetensors \(1 of 4 modules",
        ),
    ],
)
def test_what_is_said_of_a_course(
    tmp_path: Path, states: list[dict[str, Any]], final: dict[str, Any] | None, told: str
) -> None:
    history(tmp_path, states, final)
    assert re.search(told, sentence(bisected(tmp_path)))


def test_a_log_decides_without_a_scale(copied: Copy) -> None:
    folder = copied("healthy-ordinary")
    (folder / "adapter_config.json").unlink()
    found = bisected(folder)
    assert found.rows[0].save.quantity == "unscaled"
    assert found.is_decided
    log = folder / "train.log"
    log.write_text(log.read_text()[:2000])
    found = bisected(folder)
    assert not found.is_decided
    assert sentence(found).startswith("Undecided: every file up to ")


def test_saves_that_do_not_fit_the_base_are_broken(broken_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(broken_run / "adapter_config.json", folder)
    named = Adapter.read(broken_run / "0000010_adapters.safetensors")
    tensors = {f"other.{name}": one.load() for name, one in named.tensors.items()}
    for number in (10, 20):
        tensors = {name: one * np.float32(1.01) for name, one in tensors.items()}
        save(folder / f"{number:07d}_adapters.safetensors", tensors)
    found = bisected(folder, model=True)
    assert standings(found.rows) == "bb"
    assert "it cannot be put on the base model" in sentence(found)
    assert "tmp" not in found.rows[0].why
