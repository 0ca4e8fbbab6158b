"""Evidence for the checks of data, configuration and tokenizer: real files, in a folder."""

import json
from types import SimpleNamespace

import numpy as np

from fixtures.lab.cases.workshop import copied_base
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from tests.conftest import BASE, FIXTURES
from tests.given import outcome

DATA = FIXTURES / "data"


def config_of(tmp_path, **values):
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"iters": 100, **values}))
    return TrainingConfig.read(path)


def conversation(*turns):
    """A row of messages, each given as its role and its content."""
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def chat(question, answer):
    return conversation(("user", question), ("assistant", answer))


def write_data(tmp_path, **splits):
    """A data folder; a split is rows, or a text to be written as it is."""
    folder = tmp_path / "data"
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return Dataset.read(folder)


def rows_of(dataset, config=None, model=BASE, **options):
    return build(dataset, Tokenizer.read(model), config, **options)


def mlx_lm_batches(data, mask_prompt, *sizes, **options):
    """The batches that mlx-lm makes of a data folder's training rows."""
    from mlx_lm.tokenizer_utils import load
    from mlx_lm.tuner.datasets import CacheDataset, load_local_dataset
    from mlx_lm.tuner.trainer import iterate_batches

    train, _, _ = load_local_dataset(data, load(BASE), SimpleNamespace(mask_prompt=mask_prompt))
    return iterate_batches(CacheDataset(train), *sizes, **options)


def model_copy(tmp_path, template=None, tokenizer=None, **settings):
    """The base model's folder without weights, its tokenizer and that one's settings changed."""
    files = {"chat_template": template} if template is not None else {}
    files |= {"tokenizer": tokenizer or {}, "tokenizer_config": settings}
    return copied_base(tmp_path / "model", model=None, **files)


def log_of(kind="named values", **series):
    """A log with one segment; a series is (iterations, values)."""
    made = {
        name: Series(np.asarray(at, dtype=np.int64), np.asarray(values, dtype=np.float64))
        for name, (at, values) in series.items()
    }
    return TrainingLog((), kind, (Segment(made, 1, 1),))


def run(check, *evidence):
    """The outcome of a check, and its severities by symptom: of several the worst."""
    seen = outcome(check, *evidence)
    findings = sorted(seen.findings, key=lambda finding: finding.severity.rank)
    return seen, {one.code.partition(".")[2]: one.severity.value for one in findings}
