"""Two processes under `mlx.launch` train like one with the same whole batch."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.train.peer import ROOT, environment

pytestmark = pytest.mark.slow

CONFIG = {
    "model": str(FIXTURES / "base"),
    "data": str(FIXTURES / "data" / "geography"),
    "iters": 8,
    "num_layers": 2,
    # Odd, so that the processes' shares differ; masked, so that their tokens do.
    "batch_size": 3,
    "grad_accumulation_steps": 3,
    "learning_rate": 1e-3,
    "mask_prompt": True,
    "max_seq_length": 64,
    "val_batches": 3,
    "steps_per_eval": 5,
}
RUN = """
import sys
from pathlib import Path
from mlxdoctor.train import Settings, train
train(Settings.read(Path(sys.argv[1])))
"""
FIGURES = ("train_loss", "val_loss", "grad_norm", "supervised_tokens", "learning_rate")


def free_port() -> int:
    """A port that nobody listens on, with a few after it that are likely free too."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return min(port, 60_000)


def metrics(folder: Path, processes: int) -> list[dict[str, Any]]:
    """The metrics of a run by that many processes."""
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, "adapter_path": str(folder / "run")}))
    script = folder / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), str(config)]
    if processes > 1:
        launcher = shutil.which("mlx.launch", path=str(Path(sys.executable).parent))
        assert launcher is not None
        options = ["-n", str(processes), "--starting-port", str(free_port())]
        options += ["--env", f"PYTHONPATH={ROOT}"]
        command = [launcher, *options, "--", *command]
    subprocess.run(
        command, check=True, env=environment(), cwd=ROOT, capture_output=True, timeout=300
    )
    return [
        json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        alone, together = pool.map(metrics, (tmp_path / "one", tmp_path / "two"), (1, 2))
    assert [line["iteration"] for line in together] == [line["iteration"] for line in alone]
    assert len([line for line in alone if "train_loss" in line]) == 8
    assert len([line for line in alone if "grad_norm" in line]) == 3
    for one, two in zip(alone, together, strict=True):
        wanted = {name: one[name] for name in FIGURES if name in one}
        assert {name: two[name] for name in FIGURES if name in two} == pytest.approx(
            wanted, rel=1e-4
        )
