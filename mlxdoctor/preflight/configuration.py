"""What is planned: a configuration with options over it, and the same with what is advised."""

import copy
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS, MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.source import Sniffed, read_text
from mlxdoctor.finding import ADVISED, Finding, Severity, some_of
from mlxdoctor.judge.remedy import (
    assign,
    config_diff,
    fix_for,
    needed_values,
    scaled_schedule,
    value_in_force,
)
from mlxdoctor.report import Fix
from mlxdoctor.safety.errors import InputError

#: What a plan without a file is called.
NO_FILE = Path("plan")
_YAML = (".yaml", ".yml")


def is_plan(path: Path) -> bool:
    """Whether a file is a configuration to train with, and not what a run left behind.

    What trainers write beside an adapter is the latter.
    """
    if path.name == CONFIG_NAME or not path.is_file():
        return False
    file = Sniffed(path)
    # A log of JSON has rates in it as well, and names no model.
    is_log = path.suffix == ".json" and "model" not in file.record
    return not is_log and TrainingConfig.is_held_by(file)


def planned_config(file: Path | None, options: Mapping[str, Any]) -> TrainingConfig:
    """The configuration as `mlx_lm.lora` completes it: options go before the file's keys.

    Args:
        file: YAML or JSON, or a folder with an `adapter_config.json` or one configuration in it.
        options: mlx-lm's keys -> values; those that are None count as not stated.
    """
    stated = {key: value for key, value in options.items() if value is not None}
    if file is not None:
        config = TrainingConfig.read(_only_one(file) if file.is_dir() else file)
        if config.origin == "peft":
            remedy = "name one with the keys of `mlx_lm.lora`"
            raise InputError(file, "is a PEFT configuration", remedy)
        return replace(config, values={**config.values, **stated})
    if not stated:
        remedy = "name a configuration, or --model and --data"
        raise InputError(None, "there is nothing to examine", remedy)
    config = TrainingConfig((), NO_FILE, stated, "mlx-lm")
    if config.describes_training:
        return config
    # A configuration that says nothing of training is one of an adapter.
    return replace(config, values={**stated, "optimizer": MLX_LM_DEFAULTS["optimizer"]})


def _only_one(folder: Path) -> Path:
    """The configuration that a folder holds; none or several are refused."""
    written = folder / CONFIG_NAME
    try:
        plans = [written] if written.exists() else list(filter(is_plan, sorted(folder.iterdir())))
    except OSError as error:
        raise InputError(folder, f"could not be read ({error.strerror})") from None
    if len(plans) == 1:
        return plans[0]
    if plans:
        names = some_of([path.name for path in plans])
        raise InputError(folder, f"holds {len(plans)} configurations ({names})", "name one of them")
    raise InputError(folder, "holds no training configuration", "name its file")


def all_changes(
    config: TrainingConfig, diagnosis: Sequence[Diagnosed], findings: Sequence[Finding]
) -> Fix | None:
    """Every change of a key that a named or possible cause, or a finding by itself, advises.

    The first cause to change a key decides it; `diagnosis` has the best first.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for key, was, to in _advised(config, diagnosis, findings):
        if key not in after and to != was:
            before[key], after[key] = was, to
    schedule, rate = config.lr_schedule, before.get("learning_rate")
    if schedule is not None and rate:
        # A schedule wins over the plain rate in mlx-lm.
        arguments = scaled_schedule(schedule, after["learning_rate"] / rate)
        if arguments is not None:
            del before["learning_rate"], after["learning_rate"]
            place = "lr_schedule.arguments"
            before[place], after[place] = list(schedule["arguments"]), arguments
    if not after:
        return None
    texts = (changed_text(config, {}), changed_text(config, after))
    return Fix(before, after, config_diff(config, *texts))


def _advised(
    config: TrainingConfig, diagnosis: Sequence[Diagnosed], findings: Sequence[Finding]
) -> Iterator[tuple[str, Any, Any]]:
    """Key, value, and value to set; those of causes come first."""
    findings = [finding for finding in findings if finding.severity is not Severity.INFO]
    for diagnosed in diagnosis:
        change = diagnosed.cause.change
        speaking = [finding for finding in findings if finding.code in diagnosed.supporting]
        if change is None or not speaking:
            continue
        # As in a diagnosis: what was tried before what is usual.
        speaking.sort(key=lambda finding: diagnosed.supporting.index(finding.code))
        needed = needed_values(speaking)
        # Where findings advise values, those of other keys are no guesses of the cause.
        advised = any(name.startswith(ADVISED) for finding in speaking for name in finding.measured)
        is_needed = change.key.rpartition(".")[2] in needed
        if not is_needed and (advised or change.advised_only):
            continue
        if (fix := fix_for(change, config, needed)) is not None:
            for key, value in fix.after.items():
                yield key, fix.before[key], value
    for finding in findings:
        for name, value in finding.measured.items():
            key = name.removeprefix(ADVISED)
            if key == name or value is None:
                continue
            place = f"lora_parameters.{key}" if key in MLX_LM_LORA_DEFAULTS else key
            if finding.where is not None and finding.where.rpartition(".")[2] == key:
                place = finding.where
            yield place, value_in_force(config, place), value


def changed_text(config: TrainingConfig, after: Mapping[str, Any]) -> str:
    """The configuration's file with other values: YAML keeps its comments and its order.

    Without a file it is written as YAML. A key with dots is nested.
    """
    if config.path.suffix.lower() not in _YAML and config.sources:
        values = copy.deepcopy(dict(config.values))
        assign(values, after)
        return json.dumps(values, indent=4, default=str) + "\n"
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    text = read_text(config.path, "yaml_bytes")[0] if config.sources else None
    document = dict(config.values) if text is None else yaml.load(text) or {}
    assign(document, {**_by_options(config, document), **after})
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


def _by_options(config: TrainingConfig, document: Mapping[str, Any]) -> dict[str, Any]:
    """What options of the command line said otherwise than the file."""
    return {
        key: value
        for key, value in config.values.items()
        if not isinstance(value, Mapping)
        and (key not in document or not (document[key] == value or isinstance(document[key], str)))
    }
