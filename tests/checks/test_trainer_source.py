import json
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.finding import Outcome
from tests.conftest import HEALTHY

LOG = "Iter 10: Train loss nan, It/sec 1.0\nIter 20: Train loss nan, It/sec 1.0\n"
UNGUARDED = """
import mlx.core as mx

def loss(losses, mask):
    return (losses * mask).sum() / mask.sum()
"""
TORCH = """
import mlx.core as mx

def step(loss):
    loss.backward()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that left nothing but its log."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text(LOG)
    return tmp_path / "run"


def outcome(*paths: Path) -> Outcome:
    (one,) = diagnose(paths, select=["trainer-source"]).outcomes
    return one


def test_the_division_beside_a_log_is_shown(folder: Path) -> None:
    (folder / "training.py").write_text(UNGUARDED)
    (one,) = outcome(folder).findings
    assert one.code == "trainer-source.unguarded-mean"
    assert one.where == "training.py:5"
    assert "mask.sum() is zero for a batch without a target" in one.message
    assert one.severity.value == "info"


def test_an_error_of_a_rule_is_a_warning_of_a_run(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "loop.py").write_text(TORCH)
    (one,) = outcome(folder).findings
    assert (one.code, one.severity.value) == ("trainer-source.missing-in-mlx", "warning")
    report = diagnose([folder])
    assert "loop.py" in " ".join(one.source for one in report.evidence)


def test_beside_a_run_that_mlx_lm_made_it_is_a_note(folder: Path) -> None:
    (folder / "loop.py").write_text(TORCH)
    config = json.loads((HEALTHY / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (finding,) = outcome(folder).findings
    assert finding.severity.value == "info"
    # A trainer of one's own writes fewer keys.
    del config["test_batches"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (finding,) = outcome(folder).findings
    assert finding.severity.value == "warning"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("loop.py", TORCH.replace("mlx.core as mx", "torch")),
        ("test_loop.py", TORCH),
        ("loop.py", "import mlx.core as mx\nthis is no Python\n"),
        ("loop.py", "\0\0"),
        ("loop.py", ""),
        (".loop/loop.py", TORCH),
        ("a/b/c/loop.py", TORCH),
    ],
)
def test_what_is_no_mistake_or_no_trainer(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert outcome(folder).findings == ()


def test_a_source_that_is_named(folder: Path) -> None:
    (folder / "loop.py").write_text(TORCH)
    assert outcome(folder / "train.log").findings == ()
    assert len(outcome(folder / "train.log", folder / "loop.py").findings) == 1


def test_no_more_files_than_the_limit(folder: Path) -> None:
    for number in range(25):
        (folder / f"loop{number:03}.py").write_text(TORCH)
    (one,) = outcome(folder).findings
    assert one.measured["hits"] == 20


def test_nothing_is_run(folder: Path) -> None:
    marker = folder / "ran"
    (folder / "loop.py").write_text(f"import mlx.core as mx\nopen({str(marker)!r}, 'w')\n")
    outcome(folder)
    assert not marker.exists()
