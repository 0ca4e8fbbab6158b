"""What the fixture runs' adapters learned, measured with their models."""

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding
from mlxdoctor.measure import models, token_losses
from tests.conftest import FIXTURES, RUNS, check_called, expected, run_names
from tests.given import findings

learned_targets = check_called("learned-targets")


pytestmark = pytest.mark.slow

LEARNED = {
    "targets-too-long": "identity-learned",
    "labels-double-shift": "skip-learned",
    "targets-with-prompt": "prompt-learned",
    "padding-supervised": "padding-learned",
    "end-token-flood": "end-token-everywhere",
    "b-never-trained": "nothing-learned",
    "gradients-blocked": "nothing-learned",
    "rate-too-low": "nothing-learned",
    "no-supervised-tokens": "not-finite",
    "overfitting": "memorised",
    "collapse-frequent-token": "end-token-unlearned",
    "missing-end-token": "end-token-unlearned",
}
MISALIGNED = {"learned-targets.identity-learned", "learned-targets.skip-learned"}


def learned(name: str) -> dict[str, Finding]:
    config = TrainingConfig.read(RUNS / name / "adapter_config.json")
    assert config.data is not None
    data = Dataset.read(FIXTURES / config.data)
    tokenizer = Tokenizer.read(FIXTURES / "base")
    splits = [build(data, tokenizer, config, split=split) for split in ("train", "valid")]
    loaded = models.load(BaseModel.read(FIXTURES / "base"), RUNS / name / "adapters.safetensors")
    return findings(learned_targets, token_losses.measure(loaded, tokenizer, splits), tokenizer)


@pytest.mark.parametrize(("name", "symptom"), LEARNED.items())
def test_what_a_faulty_run_learned(name: str, symptom: str) -> None:
    found = learned(name)
    assert f"learned-targets.{symptom}" in found
    if symptom not in ("identity-learned", "skip-learned"):
        assert not MISALIGNED & found.keys()


@pytest.mark.parametrize("name", [n for n in run_names() if expected(n)["verdict"] == "healthy"])
def test_a_healthy_run_gives_notes_at_most(name: str) -> None:
    assert {one.severity for one in learned(name).values()} <= {"info"}
