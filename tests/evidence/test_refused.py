"""What each reader refuses, and the one sentence in which it does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import mlxdoctor
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.safetensors_file import model_files, read_safetensors
from mlxdoctor.evidence.source import read_json_object
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.yaml_file import read_yaml_object
from mlxdoctor.gate.baseline import read_baseline
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin import Settings
from tests.bisect.states import bisected
from tests.conftest import FIXTURES


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(InputError) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def index(name: str) -> dict[str, str]:
    """The index of a model whose one tensor is in the file of that name."""
    return {"model.safetensors.index.json": json.dumps({"weight_map": {"x": name}})}


def read_metrics(path: Path) -> ReportedMetrics:
    return ReportedMetrics.read((path,))


FOREIGN = (FIXTURES / "configs" / "adapter-never-attached.yaml").read_text()
PEFT = '{"peft_type": "LORA", "r": 8}'
NOT_READ = "has [%s], which is not read; write [tool.mlxdoctor]"
FOREIGN_BASELINE = '{"schema_version": 2, "known": [{"path": "a"}]}'


@pytest.mark.parametrize(
    ("read", "name", "content", "problem"),
    [
        (read_json_object, "a", "[" * 100_000, "limit json_depth"),
        (read_json_object, "a", '{"a":' * 100 + "1" + "}" * 100, "limit json_depth of 64"),
        (read_json_object, "a", '{"a": 1, "a": 2}', "'a' is there twice, with different values"),
        (read_json_object, "a", '{"iters": ' + "9" * 5000 + "}", "has 5,000 digits"),
        (read_json_object, "a", '{"iters": 1', "not valid JSON"),
        (read_json_object, "a", "\0\0\0\0", "binary file"),
        (read_yaml_object, "a", "a: &a [*a]", "contains itself"),
        (read_yaml_object, "a", "a: !!python/object/apply:os.system [x]", "not valid YAML"),
        (read_yaml_object, "a", "a: " + "[" * 20_000, "limit json_depth of 64"),
        (read_yaml_object, "a", "iters: 1\niters: 2", "'iters' is there twice"),
        (read_yaml_object, "a", "iters: " + "9" * 5000, "the number 999999999999999999999…, which"),
        (
            TrainingConfig.read,
            "a.yaml",
            "model: x\nhidden_size: 4\n",
            "is not a training configuration",
        ),
        (TrainingConfig.read, "a.yaml", "just words\n", "holds no"),
        (TrainingConfig.read, "a.yaml", "a: [1\n", "is not valid YAML"),
        (TrainingConfig.read, "a.yaml", "iters: 2024-13-45\n", "is not valid YAML"),
        (
            TrainingConfig.read,
            "a.yaml",
            f"learning_rate: 1{':59' * 400}.5\n",
            "has 1,203 characters",
        ),
        (Settings.read, "a.yaml", FOREIGN, "'max_prompt_length'; did you mean 'max_seq_length'"),
        (Settings.read, "adapter_config.json", PEFT, "PEFT"),
        (mlxdoctor.preflight, "adapter_config.json", PEFT, "is a PEFT configuration"),
        (read_safetensors, "a.safetensors", "", "is empty"),
        (Adapter.read, "adapter_model.bin", b"\x80\x04", "never opened"),
        (Dataset.read, "notes.txt", "plain words\nmore\n", "holds no JSON object"),
        (Dataset.read, "notes.txt", "[\n  1\n]\n", "holds no JSON object"),
        (Dataset.read, "notes.txt", "", "holds no JSON object"),
        (Dataset.read, "train.jsonl", '{"a": 1}\0\0', "binary"),
        (read_metrics, "a.json", '{"model": "x"}', "holds no figure"),
        (read_metrics, "a.json", '{"loss": 1.', "not valid JSON"),
        *((Generations.read, "a", x, "no generated answer") for x in ("{}", "3", "not json")),
        (Generations.read, "a", '{"prompt": "p"}', "no generated answer"),
        (read_policy, "a.toml", b"\xff\xfe\x00", "is not valid TOML"),
        (read_policy, "pyproject.toml", "[project]\nname = 'x'\n", "has no [tool.mlxdoctor]"),
        *((read_baseline, "a", x, "is not a baseline") for x in ("{", "[]", FOREIGN_BASELINE)),
        (read_baseline, "a", '{"schema_version": 1, "known": []}', "anew: --write-baseline"),
        (read_baseline, "a", '{"schema_version": 2}', "is not a baseline"),
        (read_baseline, "a", '{"schema_version": 2, "known": ["a"]}', "is not a baseline"),
    ],
)
def test_a_file(
    tmp_path: Path, read: Callable[[Path], object], name: str, content: str | bytes, problem: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert problem in refusal(read, path)


@pytest.mark.parametrize(
    ("read", "files", "problem"),
    [
        (Adapter.read, {}, "holds no adapter weights"),
        (Adapter.read, {"adapter_model.bin": "\x80\x04"}, "never opened"),
        (Adapter.read, {"adapters.npz": "PK"}, "save it with mx.save_safetensors"),
        (BaseModel.read, {"config.json": "{}"}, "holds no .safetensors weights"),
        (BaseModel.read, {"config.json": "{}", **index("1.safetensors")}, "there is no such file"),
        (CheckpointHistory.read, {}, "no numbered checkpoint"),
        (bisected, {"adapters.safetensors": "x"}, "holds no numbered checkpoint"),
        (bisected, {"100_adapters.safetensors": "x"}, "none of which can be read"),
        (Dataset.read, {}, "has no train.jsonl"),
        (model_files, index("../outside.safetensors"), "outside its folder"),
        (model_files, index("/etc/passwd"), "outside its folder"),
        (model_files, index(".."), "outside its folder"),
        (model_files, index("..\\outside.safetensors"), "outside its folder"),
        (model_files, index("model.safetensors.index.json"), "no .safetensors file"),
        *(
            (find_policy, {"pyproject.toml": f"[{name}]\nfail-on = 'warning'\n"}, NOT_READ % name)
            for name in ("tool.mlx-doctor", "tool.MLXDoctor", "mlxdoctor")
        ),
        (Tokenizer.read, {"tokenizer.model": "\n\x0e"}, "save it once with transformers"),
        *(
            (Tokenizer.read, {"tokenizer.json": text}, "is not a tokenizer")
            for text in ("{}", "[]", "nonsense", '{"model": {"type": "BPE"}}')
        ),
    ],
)
def test_a_folder(
    tmp_path: Path, read: Callable[[Path], object], files: dict[str, str], problem: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert problem in refusal(read, tmp_path)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (BaseModel.read, "no such file"),
        (CheckpointHistory.read, "is not a folder"),
        (read_policy, "there is no such policy"),
        (read_baseline, "there is no such baseline; make it: --write-baseline"),
    ],
)
def test_what_is_not_there(tmp_path: Path, read: Callable[[Path], object], problem: str) -> None:
    assert problem in refusal(read, tmp_path / "nowhere")
