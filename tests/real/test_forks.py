"""Every fork trains, or fails as it should, and leaves what it says."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mlxdoctor.api import diagnose
from tests.conftest import ROOT
from tests.preflight.small_run import SOUND

DATA = ROOT / "fixtures" / "data"
SETTINGS = SOUND | {
    "train": True,
    "batch_size": 2,
    "iters": 2,
    "val_batches": 1,
    "steps_per_report": 1,
    "save_every": 2,
    "learning_rate": 1e-3,
}


@pytest.fixture
def forks() -> Iterator[Any]:
    """The forks, over a trainer that nothing was changed in, before and afterwards."""

    def afresh() -> Any:
        from mlx_lm import lora
        from mlx_lm.tuner import datasets, trainer

        for module in (datasets, trainer, lora):
            importlib.reload(module)
        from fixtures.lab.real import forks

        return importlib.reload(forks)

    yield afresh()
    afresh()


def trained(
    forks: Any, folder: Path, name: str | None, level: Any, log: str = "table", **changes: Any
) -> dict[str, np.ndarray[Any, Any]]:
    from mlx_lm import lora

    folder.mkdir()
    config = folder.with_suffix(".yaml")
    config.write_text(json.dumps({**SETTINGS, "adapter_path": str(folder), **changes}))
    if log != "table":
        forks.log_as(log, folder)
    if name is not None:
        forks.FORKS[name](level)
    before = sys.argv
    sys.argv = ["mlx_lm.lora", "--config", str(config)]
    try:
        lora.main()
    finally:
        sys.argv = before
    return load_file(folder / "adapters.safetensors")


@pytest.mark.slow(40)
@pytest.mark.parametrize(
    ("name", "level"),
    [
        *(("shifted", level) for level in (0, 2, 3, -1)),
        ("prompt-too", 1),
        ("end-masked", 1),
        *(("whole-width", level) for level in ("zeros/", "zeros/128", "ends/", "ends/128")),
        ("no-end", 1),
        ("no-end-in-text", 1),
        *(("no-gradient", level) for level in ("logits", "lower-layers")),
        *(("base-too", level) for level in ("norms", "layers", "everything")),
        ("never-attached", 2),
        *(
            ("saved-otherwise", level)
            for level in ("fresh", "no-b", "prefix", "peft", "one-factor")
        ),
        *(("half-precision", level) for level in ("all", "adapter")),
        ("other-tokenizer", str(ROOT / "fixtures" / "base")),
    ],
)
def test_a_fork_trains(
    name: str, level: Any, forks: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = {"data": str(DATA / "geography-text")} if name == "no-end-in-text" else {}
    tensors = trained(forks, tmp_path / "run", name, level, **text)
    assert "val" in capfd.readouterr().out
    b = {key: value for key, value in tensors.items() if key.lower().endswith(("lora_b",))}
    moved = any(np.any(value) for value in b.values())
    if name == "never-attached":
        assert not b
        assert len({key.split(".")[2] for key in tensors}) == level
    elif level in ("logits", "fresh", "no-b"):
        assert b
        assert not moved
    elif name == "half-precision":
        assert any(np.isnan(value).any() for value in tensors.values())
    elif level == "one-factor":
        assert not b
    else:
        assert moved
    if level == "lower-layers":
        still = {key.split(".")[2] for key, value in b.items() if not np.any(value)}
        assert still == {"0", "1", "2"}
    if name == "base-too":
        assert all("lora_" in key for key in tensors)
    if level == "peft":
        assert all(key.startswith("base_model.model.model.layers") for key in tensors)


@pytest.mark.slow(8)
@pytest.mark.parametrize("level", ["all", "adapter"])
def test_half_precision_is_told_from_a_high_rate(
    level: str, forks: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"iters": 6, "steps_per_report": 2, "learning_rate": 2e-4}
    trained(forks, tmp_path / "run", "half-precision", level, **changes)
    (tmp_path / "run" / "train.log").write_text(capfd.readouterr().out)
    report = diagnose([tmp_path / "run"], allow_model=False)
    assert report.root.cause.id == "numeric-overflow"
