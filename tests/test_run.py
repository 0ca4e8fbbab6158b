"""Evidence is read once, on first use, and what is missing has a reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.check import discover
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.run import Run
from tests.conftest import RUNS


def test_base_and_data_are_followed_from_the_configuration() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    base, data = run.get(BaseModel), run.get(Dataset)
    assert base is not None
    assert base.path.name == "base"
    assert data is not None
    assert set(data.splits) >= {"train", "valid"}


def test_a_base_that_is_not_here_is_missing_with_its_name(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    config = json.loads((folder / "adapter_config.json").read_text())
    config.update(model="someone/large-model", data="somewhere/data")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    run = Run.discover([folder])
    assert run.get(BaseModel) is None
    assert "'someone/large-model'" in run.why_missing(BaseModel)
    assert "--base" in run.why_missing(BaseModel)
    assert run.get(Dataset) is None
    assert "--data" in run.why_missing(Dataset)


def test_evidence_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    assert run.get(TrainingLog) is run.get(TrainingLog)


def test_every_source_has_the_hash_of_its_file() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    run.get(Adapter), run.get(TrainingLog), run.get(Generations)
    hashed = {Path(file.source): file.sha256 for file in run.evidence if file.sha256}
    assert {"adapters.safetensors", "train.log", "generations.jsonl", "adapter_config.json"} <= {
        path.name for path in hashed
    }
    for path, sha256 in hashed.items():
        assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_unreadable_file_is_missing_evidence_and_the_rest_is_used(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("healthy-ordinary")
    adapter = folder / "adapters.safetensors"
    adapter.write_bytes(adapter.read_bytes()[:1000])
    run = Run.discover([folder], allow_model=False)
    assert run.get(Adapter) is None
    assert run.get(TrainingLog) is not None
    assert run.get(TrainingConfig) is not None
    (error,) = run.unreadable
    assert error.path == adapter


def test_without_permission_no_model_is_run() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    assert run.get(TokenLosses) is None
    assert "--no-generate" in run.why_missing(TokenLosses)
    generations = run.get(Generations)
    assert generations is not None
    assert generations.how == "recorded"


def test_metrics_are_missing_with_a_reason_where_nothing_was_evaluated() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    assert run.get(ReportedMetrics) is None
    assert run.why_missing(ReportedMetrics) == "no evaluation result was found"


def test_a_check_needs_models_if_something_that_it_asks_for_does() -> None:
    needing = {check.name for check in discover() if check.needs_models}
    assert {"learned-targets", "generation-effect", "token-collapse"} <= needing
    assert needing.isdisjoint({"loss-trend", "adapter-presence", "data-format", "learning-rate"})


def test_what_runs_a_model_says_so() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    for kind in {one.kind for check in discover() for one in check.requirements}:
        if run.get(kind) is None and "--no-generate" in run.why_missing(kind):
            assert kind.needs_models, kind


def test_an_option_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="measured"):
        Run.discover([RUNS / "healthy-ordinary"], measured="kept.json")


def test_paths_may_be_text() -> None:
    options = Options(base="models/llama", log=["a.log"])
    assert (options.base, options.log) == (Path("models/llama"), (Path("a.log"),))
    assert options.paths == {"base": Path("models/llama")}
