"""A base model's size and vocabulary: from its folder, from the log, or from its name."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.tables import shipped

#: What the names of families of models say, a table each.
_FAMILIES = tuple(shipped("mlxdoctor.judge", "model_families.toml").values())
#: A size in a name: "3b", "0.5B", "135M"; not the "4b" of "4bit", nor the second half of "8x7b".
_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d{1,3})?)(b|m)(?![a-z0-9])")
_UNITS = {"b": 1e9, "m": 1e6}
#: Characters at the end of a name that are looked at.
MAX_PATH = 1000
#: A name in the cache of the Hugging Face hub: models--owner--name/snapshots/...
_CACHED = re.compile(r"models--[^/]*?--([^/]+)/snapshots/")
_OF_COMMAND = re.compile(r"--model[= ]([^\s\"']+)")
#: Tokens that no common model has more of: a blind guess is among these where the model is unknown.
MAX_VOCABULARY = 300_000


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a base model.

    Attributes:
        size_from: what says how many parameters: "its files", "the log" or "its name".
        vocabulary: entries of its output layer.
    """

    parameters: float | None = None
    size_from: str = ""
    vocabulary: int | None = None


def model_facts(
    config: TrainingConfig | None, log: TrainingLog | None, base: BaseModel | None
) -> ModelFacts:
    """Size and vocabulary of the model that a run was trained on, from the best that says so."""
    if base is not None:
        return ModelFacts(float(base.parameter_count), "its files", base.vocab_size)
    header = log.notes.header if log is not None else {}
    stated = (config and config.model) or header.get("model")
    in_command = _OF_COMMAND.search(header.get("command", ""))
    named = facts_of_name(stated or (in_command[1] if in_command else ""))
    trainable = log.notes.trainable if log is not None else None
    if trainable is not None and (millions := trainable.total_millions):
        return ModelFacts(millions * 1e6, "the log", named.vocabulary)
    return named


def facts_of_name(name: str) -> ModelFacts:
    """What a model's name says of it: a folder's or one of the Hugging Face hub."""
    path = name[-MAX_PATH:].replace("\\", "/")
    cached = _CACHED.search(path)
    last = cached[1] if cached else PurePosixPath(path).name
    plain = last.lower().replace("_", "-")
    family: dict[str, Any] = next(
        (entry for entry in _FAMILIES if re.search(entry["name"], plain)), {}
    )
    size = _SIZE.search(plain)
    of_size = float(size[1]) * _UNITS[size[2]] if size else None
    parameters = family.get("parameters", of_size)
    return ModelFacts(parameters, "its name" if parameters else "", family.get("vocabulary"))
