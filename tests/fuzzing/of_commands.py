"""Readers of what a command other than `diagnose` is given: policies, baselines, settings, rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

from mlxdoctor.check import discover
from mlxdoctor.evidence.code_files import RemoteCode
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import encoder_of
from mlxdoctor.gate.baseline import baseline_text, read_baseline
from mlxdoctor.gate.policy_file import find_policy, read_policy
from mlxdoctor.labels.label_rows import Totals, labelled, spans
from mlxdoctor.run import Run
from mlxdoctor.twin.settings import Settings
from mlxdoctor.watch.follow import Follower, Until
from mlxdoctor.watch.growing_log import GrowingLog
from tests.fuzzing import seeds
from tests.fuzzing.reader import Reader, touch

_checks = cache(discover)

#: Where the patterns of a policy are looked for.
_KEYS = ("adapters/old/one", "models/new")
#: Rows that `labels` shows, the others are counted.
SHOWN = 100


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
fail = ["weight-drift.large"]
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
        "code": "weight-drift.large",
        "fingerprint": "weight-drift.large:model.layers.0",
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
    touch(Follower(log).run(Until(at_once=True)))


def _labels(folder: Path) -> None:
    totals = Totals()
    dataset = Dataset.read(folder / "rows.jsonl")
    for line, row in labelled(*encoder_of(dataset, seeds.tokenizer(), None, "train")):
        totals.add(line, row)
        if not isinstance(row, str) and totals.rows <= SHOWN:
            spans(row)
    totals.to_dict()


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
    Reader("policy", "mlxdoctor.toml", _policy, policies, tokens=("[[override]]\n",
           "[[ignore]]\n", 'paths = ["', "fail-on = ", "1e999", "nan", "2030-01-31",
           "[tool.mlxdoctor]\n", "**/")),
    Reader("baseline", "known.json", _baseline, baselines,
           tokens=('"schema_version": 2', '"known": [', '"figures": {', "1e999", "NaN", "9" * 400)),
    Reader("watched-log", "train.log", _watched, seeds.text_logs,
           tokens=("Iter ", "Train loss nan", "Val loss ", "\x1b[31m", "\r", "1e999", "| ", "▼")),
    Reader("label-rows", "rows.jsonl", _labels, seeds.datasets, tokens=('"messages":[', '"role":"',
           '"prompt":', '"completion":', '"tokens":[', '"tools":')),
    Reader("settings", "lora.yaml", _settings, _own_settings, tokens=("lora_parameters:",
           "lr_schedule:", "mlxdoctor:", ".inf", ".nan", "1e999", "- ")),
    Reader("code-files", "config.json", lambda folder: RemoteCode.read([folder]),
           lambda: [b'{"auto_map": {"AutoModel": "modeling.Model"}, "trust_remote_code": true}'],
           tokens=('"auto_map":', '"model_file":', '"chat_template_type":', "null")),
    Reader("found-file", "named", _found, named_files,
           tokens=(".safetensors\n", ".jsonl\n", ".ipynb\n", ".yaml\n", "Iter 1: ")),
)  # fmt: skip
