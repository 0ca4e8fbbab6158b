"""Evidence is read once, on first use, and what is missing has a reason."""

import hashlib
from pathlib import Path

import pytest

from mlxdoctor.check import discover
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.run import Run
from tests.conftest import RUNS, Copy
from tests.weight_files import write_config


@pytest.fixture
def run() -> Run:
    return Run.discover([RUNS / "healthy-ordinary"], allow_model=False)


def test_base_and_data_are_followed_from_the_configuration(run: Run) -> None:
    base, data = run.need(BaseModel), run.need(Dataset)
    assert base.path.name == "base"
    assert set(data.splits) >= {"train", "valid"}


def test_a_base_that_is_not_here_is_missing_with_its_name(copied: Copy) -> None:
    path = write_config(copied("healthy-ordinary"), model="someone/large", data="somewhere/data")
    run = Run.discover([path])
    why = "'someone/large' is not on this machine; name its folder with --base"
    with pytest.raises(Missing, match=why):
        run.need(BaseModel)
    with pytest.raises(Missing, match="--data"):
        run.need(Dataset)


def test_of_several_data_folders_it_is_the_one_that_the_run_was_made_with(tmp_path: Path) -> None:
    for name in ("data", "spring"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text('{"text": "A lake."}\n')
    write_config(tmp_path, data="spring")
    assert Run.discover([tmp_path]).need(Dataset).path.name == "spring"
    named = Run.discover([tmp_path], data=tmp_path / "data")
    assert named.need(Dataset).path.name == "data"


def test_a_log_that_is_named_alone_names_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: someone/small\niters: 60\nlearning_rate: 1e-5\n")
    log = tmp_path / "train.log"
    log.write_text("Loading configuration file config.yaml\nIter 1: Val loss 4.2, Val took 1.0s\n")
    run = Run.discover([log])
    assert run.need(TrainingConfig).model == "someone/small"
    # The log is not read once more for it.
    assert TrainingLog in run._cache
    (tmp_path / "config.yaml").write_text("[")
    assert Run.discover([log]).get(TrainingConfig) is None


def test_every_source_is_read_once_and_has_the_hash_of_its_file(run: Run) -> None:
    assert run.get(TrainingLog) is run.get(TrainingLog)
    run.get(Adapter), run.get(Generations)
    hashed = {Path(file.source): file.sha256 for file in run.evidence if file.sha256}
    assert {"adapters.safetensors", "train.log", "generations.jsonl", "adapter_config.json"} <= {
        path.name for path in hashed
    }
    for path, sha256 in hashed.items():
        assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_permission_no_model_is_run(run: Run) -> None:
    with pytest.raises(Missing, match="--no-generate"):
        run.need(TokenLosses)
    assert run.need(Generations).how == "recorded"
    with pytest.raises(Missing, match=r"^no evaluation result was found$"):
        run.need(ReportedMetrics)


def test_a_check_needs_models_if_something_that_it_asks_for_does(run: Run) -> None:
    needing = {check.name for check in discover() if check.needs_models}
    assert {"learned-targets", "generation-effect", "token-collapse"} <= needing
    assert needing.isdisjoint({"loss-trend", "adapter-presence", "data-format", "learning-rate"})
    for kind in {need.kind for check in discover() for need in check.requirements}:
        if run.get(kind) is None:
            with pytest.raises(Missing) as lacking:
                run.need(kind)
            assert "--no-generate" not in str(lacking.value) or kind.needs_models, kind


def test_options_may_be_text_and_none_other_than_there_are() -> None:
    options = Options(base="models/llama", log=["a.log"])
    assert (options.base, options.log) == (Path("models/llama"), (Path("a.log"),))
    assert options.paths == {"base": Path("models/llama")}
    with pytest.raises(TypeError, match="measured"):
        Run.discover([RUNS / "healthy-ordinary"], measured="kept.json")


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", MemoryError),
        ("[malloc] Unable to allocate 8 bytes.", MemoryError),
        ("the shapes differ", RuntimeError),
    ],
)
def test_a_device_without_memory_is_told_from_a_mistake(
    run: Run, said: str, raised: type[Exception]
) -> None:
    class Heavy:
        kind = "heavy"

        @classmethod
        def find(cls, run: Run) -> "Heavy":
            raise RuntimeError(said)

    with pytest.raises(raised):
        run.get(Heavy)
    if raised is MemoryError:
        with pytest.raises(Missing, match=r"^reading it needed more memory than there is$"):
            run.need(Heavy)
