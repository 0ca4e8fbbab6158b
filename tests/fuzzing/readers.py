"""Every reader of files that others made, as a function of bytes: the one list of them.

A reader gets the bytes as a file in a folder of its own and reads it through the class
that `diagnose` uses, then asks for everything that class offers: a hostile value may be
met long after the file was parsed. `InputError` is the only way in which it may refuse.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from mlxdoctor.check import discover
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.code_files import RemoteCode
from mlxdoctor.evidence.config import Setting, TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.gate.baseline import baseline_text, read_baseline
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.models.generations import Generations
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.settings import Settings
from mlxdoctor.watch.follow import Follower
from mlxdoctor.watch.growing_log import GrowingLog
from tests.fuzzing import seeds


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: what the report and the corpus call it.
        file: the name under which the bytes are stored in the folder.
        read: reads the folder, everything in it; raises `InputError` or a refusal.
        seeds: sound inputs to start from.
        around: name -> content of the other files that the folder holds.
        refusals: exceptions that its documentation promises.
        tokens: texts that its format is made of, for mutations.
    """

    name: str
    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    around: Callable[[], dict[str, bytes]] = dict
    refusals: tuple[type[Exception], ...] = (InputError,)
    tokens: tuple[str, ...] = ()

    def prepare(self, folder: Path) -> None:
        """Make the folder, with every file but the one that varies."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.around().items():
            (folder / name).write_bytes(content)

    def feed(self, content: bytes, folder: Path) -> bool:
        """Read `content` in a prepared folder; whether it was accepted.

        Raises:
            Exception: anything but a refusal, which is a fault in the reader.
        """
        (folder / self.file).write_bytes(content)
        try:
            # What a log format or a lint rule raises is a sentence elsewhere.
            with (
                patch("mlxdoctor.evidence.logs.log_format.failure_of", _raise),
                patch("mlxdoctor.lint.linter.failure_of", _raise),
            ):
                self.read(folder)
        except self.refusals:
            return False
        return True


def _raise(error: BaseException) -> NoReturn:
    raise error


def touch(value: Any) -> None:
    """Ask a piece of evidence for each of its properties; what can't be told may be refused."""
    for name in _properties(type(value)):
        try:
            getattr(value, name)
        except InputError:
            continue


@cache
def _properties(kind: type[Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, attribute in inspect.getmembers_static(kind)
        if isinstance(attribute, property | cached_property | Setting) and not name.startswith("_")
    )


#: What a chat template is asked to write.
CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Was ist die Größe?"},
    {"role": "assistant", "content": "Ten.", "reasoning": "It is ten."},
)


def _adapter(folder: Path) -> None:
    adapter = Adapter.read(folder)
    hash_file(adapter.path)
    touch(adapter)
    for tensor in adapter.tensors.values():
        for _ in tensor.blocks():
            pass
    touch(TunedModel.of(adapter))


def _config(folder: Path) -> None:
    config = TrainingConfig.read(folder)
    touch(config)
    for key in ("learning_rate", "lr_schedule", "iters", "num_layers", "rank", "scale"):
        config.is_default(key)


def _log_called(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        looks_like_log(folder / name)
        log = TrainingLog.read([folder / name])
        touch(log)
        for segment in log.segments:
            touch(segment)
            for series in segment.series.values():
                touch(series)

    return read


def _dataset(folder: Path) -> None:
    dataset = Dataset.read(folder)
    touch(dataset)
    rows = build(dataset, seeds.tokenizer(), None, split="train")
    touch(rows)
    split = dataset.splits["train"]
    for row in split.rows[:8]:
        split.turn(row)
        split.pair(row)


def _read_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.read(folder)
    touch(tokenizer)
    tokenizer.decode(tokenizer.encode("Was ist die Größe? <|im_end|>"))
    tokenizer.token(3)
    try:
        tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=True)
    except TemplateFailure:
        return


def _template(folder: Path) -> None:
    tokenizer = Tokenizer.read(folder)
    tokenizer.render(CONVERSATION, add_generation_prompt=True)
    tokenizer.render(CONVERSATION[1:], tools=[{"name": "search"}])


def _metrics(folder: Path) -> None:
    metrics = ReportedMetrics.read([folder / "evaluation.json"])
    touch(metrics)
    for value in metrics.values:
        touch(value)


def _checkpoints(folder: Path) -> None:
    """The bytes are the names in a folder of checkpoints, one a line."""
    run = folder / "run"
    for old in sorted(run.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    run.mkdir(exist_ok=True)
    sound = (folder / "sound.safetensors").read_bytes()
    for line in (folder / "names").read_bytes().splitlines()[:8]:
        name = line.replace(b"\0", b"").replace(b"/", b"")[:200].decode("utf-8", "replace")[:60]
        if name in ("", ".", ".."):
            continue
        (run / name).write_bytes(sound)
    history = CheckpointHistory.read(run)
    touch(history)
    for checkpoint in history.checkpoints:
        touch(checkpoint)


def _conversion(folder: Path) -> None:
    from mlxdoctor.convert.conversion import convert

    convert(folder)


def _lint(folder: Path) -> None:
    from mlxdoctor.lint.linter import lint

    lint([folder / "trainer.py"])


def _model(folder: Path) -> None:
    base = BaseModel.read(folder)
    touch(base)
    for matrix in base.quantized.values():
        touch(matrix)
    touch(TunedModel.read(folder))


_checks = cache(discover)

#: Where the patterns of a policy are looked for.
_KEYS = ("adapters/old/one", "models/new")


def _policy(folder: Path) -> None:
    path = find_policy(folder)
    assert path == folder / "mlxdoctor.toml"
    # Which packages are installed is looked up anew for each policy, and is no part of reading it.
    with patch("mlxdoctor.gate.policy_file.discover", _checks):
        policy = read_policy(path)
    for key in _KEYS:
        policy.rules_for(key)


def policies() -> Sequence[bytes]:
    full = b"""require = ["loss-trend"]
fail-on = "warning"
suspect = "fail"
fail = ["weight-drift.exploded"]
require-generate = true
baseline = "known.json"
[[override]]
paths = ["adapters/old/**"]
fail-on = "never"
[[ignore]]
code = "loss-trend.diverged"
reason = "by design"
paths = ["models/*"]
expires = 2030-01-31
"""
    return [full, b'[tool.mlxdoctor]\nfail-on = "error"\n']


def _baseline(folder: Path) -> None:
    known = read_baseline(folder / "known.json")
    baseline_text(known)
    for one in known:
        for other in known:
            one.reopened_by(other)


def baselines() -> Sequence[bytes]:
    entry = {
        "path": "adapters/one",
        "code": "weight-drift.exploded",
        "fingerprint": "weight-drift.exploded:model.layers.0",
        "file": "00" * 32,
        "figures": {"ratio": 1.5, "modules": 4},
    }
    known = [entry, {**entry, "path": "adapters/two", "figures": {}}]
    return [json.dumps({"schema_version": 2, "known": known}).encode()]


def _watched(folder: Path) -> None:
    """The log as a whole, and a part of it while it is written."""
    log = GrowingLog(folder / "train.log")
    stamp = log.stamp()
    assert stamp is not None
    touch(log.read(stamp, is_whole=False))
    touch(Follower(log).run(at_once=True))


def _settings(folder: Path) -> None:
    settings = Settings.read(folder / "lora.yaml")
    json.dumps(settings.stated(), default=str)


def _own_settings() -> Sequence[bytes]:
    """mlx-lm's keys alone, and ours beside them."""
    plain = b"""train: true
model: base
num_layers: 4
learning_rate: 1e-4
lora_parameters: {rank: 8, scale: 20.0, dropout: 0.0, keys: [self_attn.q_proj]}
lr_schedule: {name: cosine_decay, warmup: 10, arguments: [1e-5, 100]}
optimizer_config: {adamw: {weight_decay: 0.01}}
"""
    return [plain, b"iters: 3\nmlxdoctor:\n  mode: parity\n"]


def _found(folder: Path) -> None:
    """A file that nobody named, in a run's folder: its first line is what it is called."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    for old in run.iterdir():
        old.unlink()
    name, _, content = (folder / "named").read_bytes().partition(b"\n")
    called = name.replace(b"\0", b"").replace(b"/", b"")[:60].decode("utf-8", "replace")
    if called not in ("", ".", ".."):
        (run / called).write_bytes(content)
    touch(Run.discover([run], allow_model=False).files)


def named_files() -> Sequence[bytes]:
    log = b"Iter 1: Train loss 2.5\nIter 2: Train loss 2.25\n"
    contents = {
        b"notes.txt": log,
        b"adapters.safetensors": seeds.small_adapter(),
        b"my-adapter.safetensors": seeds.small_adapter(),
        b"answers.jsonl": b'{"prompt": "Ten?", "tuned": "X"}\n',
        b"results.json": b'{"eval_loss": 2.5}',
        b"lora.yml": b"learning_rate: 1e-4\n",
        b"train.jsonl": b'{"text": "Ten."}\n',
        b"run.ipynb": seeds.notebooks()[0],
        b"log.md": b"| step | loss |\n|---|---|\n| 1 | 2.5 |\n| 2 | 2.25 |\n",
        b"0000100_adapters.safetensors": seeds.small_adapter(),
    }
    return [name + b"\n" + content for name, content in contents.items()]


READERS: tuple[Reader, ...] = (
    Reader("safetensors", "adapters.safetensors", _adapter, seeds.adapters,
           tokens=('"data_offsets":[0,', '"shape":[', '"dtype":"BF16"', '"__metadata__":{}',
           "lora_a")),
    Reader("adapter-config", "adapter_config.json", _config, seeds.configs,
           tokens=("NaN", "1e999", "-1", "null", '"lora_parameters":', '"lr_schedule":', "[[[[")),
    Reader("yaml-config", "lora.yaml",
           lambda folder: touch(TrainingConfig.read(folder / "lora.yaml")), seeds.yaml_configs,
           tokens=("&a ", "*a", "<<: ", "!!", "2001-01-01", "0o7", "? ", "- ", "1_0:0:0")),
    Reader("text-log", "train.log", _log_called("train.log"), seeds.text_logs, tokens=("Iter ",
           "Train loss nan", "Val loss ", "\x1b[31m", "\r", "1e999", "| ", "=====", "▼")),
    Reader("jsonl-log", "train.jsonl", _log_called("train.jsonl"), seeds.json_line_logs,
           tokens=('{"iteration":', '"train_loss":', "NaN", "1e999", "[]", '"epoch":')),
    Reader("notebook", "train.ipynb", _log_called("train.ipynb"), seeds.notebooks,
           tokens=('"cells":[', '"outputs":[', '"text":[', '"output_type":"stream"', "\\n",
           "Iter ")),
    Reader("json-log", "trainer_state.json", _log_called("trainer_state.json"), seeds.json_logs,
           tokens=('"log_history":[', '"train_loss":[', '"step":', "true", "1e999", "null")),
    Reader("csv-log", "train.csv", _log_called("train.csv"), seeds.csv_logs,
           tokens=("step,", "loss", '"', "\n", ";", "\t", " - ", "__MIN")),
    Reader("dataset", "train.jsonl", _dataset, seeds.datasets, tokens=('"messages":[', '"role":"',
           '"prompt":', '"completion":', '"tools":')),
    Reader("tokenizer", "tokenizer.json", _read_tokenizer, seeds.tokenizers,
           seeds.around_tokenizer),
    Reader("tokenizer-config", "tokenizer_config.json", _read_tokenizer, seeds.tokenizer_configs,
           seeds.tokenizer_alone,
           tokens=('"added_tokens_decoder":{', '"content":', '"chat_template":[', '"special":')),
    Reader("chat-template", "chat_template.jinja", _template, seeds.templates,
           seeds.tokenizer_alone, refusals=(InputError, TemplateFailure), tokens=("{% for ", "{{",
           "}}", "%}", "{% macro ", "| tojson", "loop.", "range(", " ** ", "~")),
    Reader("metrics", "evaluation.json", _metrics, seeds.metrics,
           tokens=('"perplexity":', '"loss":', "1e999", "-0", '"split":', '{"a":')),
    Reader("generations", "generations.jsonl",
           lambda folder: touch(Generations.read(folder / "generations.jsonl")), seeds.generations,
           tokens=('"tuned_tokens":[', '"prompt":', '"end_token_ids":', '"messages":', "null")),
    Reader("checkpoints", "names", _checkpoints, seeds.checkpoint_names,
           lambda: {"sound.safetensors": seeds.small_adapter()},
           tokens=("_adapters.safetensors", "١٢")),
    Reader("peft-weights", "adapter_model.safetensors", _conversion, seeds.peft_weights,
           lambda: {"adapter_config.json": seeds.peft_config()},
           tokens=("base_model.model.", ".lora_A.weight", ".lora_B.weight", '"shape":[')),
    Reader("peft-config", "adapter_config.json", _conversion, lambda: [seeds.peft_config()],
           lambda: {"adapter_model.safetensors": seeds.small_peft()},
           tokens=('"rank_pattern":{', '"alpha_pattern":{', '"target_modules":', "true", "1e999")),
    Reader("source", "trainer.py", _lint, seeds.sources, tokens=("lambda ", "yield ",
           "nn.value_and_grad(", "mx.eval(", "\\\n", "# mlxdoctor: ignore[")),
    Reader("model-index", "model.safetensors.index.json", _model, seeds.model_indexes,
           seeds.around_index,
           tokens=('"weight_map":{', "../", "/dev/zero", "model-00001-of-00002.safetensors")),
    Reader("model-config", "config.json", _model, seeds.model_configs,
           lambda: {"model.safetensors": seeds.small_model()}, tokens=('"quantization":{',
           '"bits":', '"group_size":', '"mode":"mxfp4"', '"text_config":')),
    Reader("model-weights", "model.safetensors", _model, lambda: [seeds.small_model()],
           lambda: {"config.json": seeds.model_configs()[0]},
           tokens=(".scales", ".biases", ".weight", '"U32"', '"shape":[')),
    Reader("policy", "mlxdoctor.toml", _policy, policies, tokens=("[[override]]\n",
           "[[ignore]]\n", 'paths = ["', "fail-on = ", "1e999", "nan", "2030-01-31",
           "[tool.mlxdoctor]\n", "**/")),
    Reader("baseline", "known.json", _baseline, baselines,
           tokens=('"schema_version": 2', '"known": [', '"figures": {', "1e999", "NaN", "9" * 400)),
    Reader("watched-log", "train.log", _watched, seeds.text_logs,
           tokens=("Iter ", "Train loss nan", "Val loss ", "\x1b[31m", "\r", "1e999", "| ", "▼")),
    Reader("settings", "lora.yaml", _settings, _own_settings, tokens=("lora_parameters:",
           "lr_schedule:", "mlxdoctor:", ".inf", ".nan", "1e999", "- ")),
    Reader("code-files", "config.json", lambda folder: RemoteCode.read([folder]),
           lambda: [b'{"auto_map": {"AutoModel": "modeling.Model"}, "trust_remote_code": true}'],
           tokens=('"auto_map":', '"model_file":', '"chat_template_type":', "null")),
    Reader("found-file", "named", _found, named_files,
           tokens=(".safetensors\n", ".jsonl\n", ".ipynb\n", ".yaml\n", "Iter 1: ")),
)  # fmt: skip


def reader_called(name: str) -> Reader:
    """The reader of that name, or an `InputError`."""
    by_name = {reader.name: reader for reader in READERS}
    if name not in by_name:
        raise InputError(None, f"no reader is called {name!r}", f"there are {', '.join(by_name)}")
    return by_name[name]


def corpus(reader: Reader) -> Iterator[Path]:
    """The committed inputs of a reader, by name."""
    yield from sorted((Path(__file__).parent / "corpus" / reader.name).glob("*"))
