"""Every reader of files that others made, as a function of bytes: the one list of them.

A reader gets the bytes as a file in a folder of its own and reads it through the class
that `diagnose` uses, then asks for everything that class offers: a hostile value may be
met long after the file was parsed. `InputError` is the only way in which it may refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError
from tests.fuzzing import of_commands, seeds
from tests.fuzzing.reader import Reader, touch

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
        if name.endswith("safetensors"):
            (run / name).write_bytes(sound)
        else:
            (run / name).mkdir(exist_ok=True)
            (run / name / "adapter_model.safetensors").write_bytes(sound)
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
           '"prompt":', '"completion":', '"tokens":[', '"tools":')),
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
           tokens=("_adapters.safetensors", "checkpoint-", "١٢")),
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
    *of_commands.READERS,
)  # fmt: skip


def reader_called(name: str) -> Reader:
    """The reader of that name.

    Raises:
        InputError: there is none.
    """
    by_name = {reader.name: reader for reader in READERS}
    if name not in by_name:
        raise InputError(None, f"no reader is called {name!r}", f"there are {', '.join(by_name)}")
    return by_name[name]


def corpus(reader: Reader) -> Iterator[Path]:
    """The committed inputs of a reader, by name."""
    yield from sorted((Path(__file__).parent / "corpus" / reader.name).glob("*"))
