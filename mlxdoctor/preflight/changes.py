"""All that a preflight advises to change, in the configuration's own file and as one diff."""

from __future__ import annotations

import copy
import difflib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.source import read_text
from mlxdoctor.finding import ADVISED, Finding, Severity
from mlxdoctor.judge.remedy import fix_for, needed_values, scaled_schedule
from mlxdoctor.report import Fix

_YAML = (".yaml", ".yml")


def all_changes(
    config: TrainingConfig, diagnosis: Sequence[Diagnosed], findings: Sequence[Finding]
) -> Fix | None:
    """Every change of a key that a named or possible cause, or a finding by itself, advises.

    The first cause to change a key decides it.

    Args:
        config: what is planned.
        diagnosis: the causes, best first.
        findings: all of them.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for key, was, to in (*_of_causes(config, diagnosis, findings), *_of_findings(config, findings)):
        if key not in after and to != was:
            before[key], after[key] = was, to
    _reach_the_schedule(config, before, after)
    if not after:
        return None
    return Fix(before, after, _diff(config, after))


def _reach_the_schedule(
    config: TrainingConfig, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A schedule wins over the plain rate in mlx-lm, so that a change of the rate is one of it."""
    schedule, was = config.lr_schedule, before.get("learning_rate")
    if schedule is None or not was or "learning_rate" not in after:
        return
    arguments = scaled_schedule(schedule, after["learning_rate"] / was)
    if arguments is not None:
        del before["learning_rate"], after["learning_rate"]
        place = "lr_schedule.arguments"
        before[place], after[place] = list(schedule["arguments"]), arguments


def _of_causes(
    config: TrainingConfig, diagnosis: Sequence[Diagnosed], findings: Sequence[Finding]
) -> Iterator[tuple[str, Any, Any]]:
    for one in diagnosis:
        change = one.cause.change
        speaking = [
            found
            for found in findings
            if found.code in one.supporting and found.severity is not Severity.INFO
        ]
        needed = needed_values(speaking)
        if change is None or not speaking:
            continue
        # Where findings advise values, those of other keys are no guesses of the cause.
        advised = any(name.startswith(ADVISED) for found in speaking for name in found.measured)
        is_needed = change.key.rpartition(".")[2] in needed
        if not is_needed and (advised or change.advised_only):
            continue
        fix = fix_for(change, config, needed)
        if fix is not None:
            for key, value in fix.after.items():
                yield key, fix.before[key], value


def _of_findings(
    config: TrainingConfig, findings: Sequence[Finding]
) -> Iterator[tuple[str, Any, Any]]:
    for found in findings:
        for name, value in found.measured.items():
            if name.startswith(ADVISED) and found.severity is not Severity.INFO:
                place = _place(name.removeprefix(ADVISED), found.where)
                yield place, _value_at(config, place), value


def _place(key: str, where: str | None) -> str:
    if where is not None and where.rpartition(".")[2] == key:
        return where
    return f"lora_parameters.{key}" if key in MLX_LM_LORA_DEFAULTS else key


def _value_at(config: TrainingConfig, place: str) -> Any:
    if "." not in place:
        return config._value(place)
    found: Any = config.values
    for part in place.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def changed_text(config: TrainingConfig, after: Mapping[str, Any]) -> str:
    """The configuration's file with other values: YAML keeps its comments and its order.

    Args:
        config: what is planned; without a file it is written as YAML.
        after: key -> value; a key with dots is nested.

    Raises:
        InputError: the file can't be read again.
    """
    if config.path.suffix.lower() not in _YAML and config.sources:
        values = copy.deepcopy(dict(config.document or config.values))
        _assign_all(values, after)
        return json.dumps(values, indent=4, default=str) + "\n"
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    document = yaml.load(_text(config)) if config.sources else dict(config.values)
    if document is None:
        document = {}
    _assign_all(document, {**_by_options(config, document), **after})
    written = io.StringIO()
    yaml.dump(document, written)
    return written.getvalue()


def _text(config: TrainingConfig) -> str:
    return read_text(config.path, "yaml_bytes")[0]


def _by_options(config: TrainingConfig, document: Mapping[str, Any]) -> dict[str, Any]:
    """What options of the command line said otherwise than the file."""
    if config.origin == "own":
        return {}
    plain = {key: value for key, value in config.values.items() if not isinstance(value, Mapping)}
    return {
        key: value
        for key, value in plain.items()
        if key not in document or not (document[key] == value or isinstance(document[key], str))
    }


def _diff(config: TrainingConfig, after: Mapping[str, Any]) -> str:
    before = changed_text(config, {})
    lines = difflib.unified_diff(
        before.splitlines(),
        changed_text(config, after).splitlines(),
        fromfile=config.path.name,
        tofile=f"{config.path.name} (fixed)",
        lineterm="",
        n=1,
    )
    return "\n".join(lines)


def _assign_all(values: Any, after: Mapping[str, Any]) -> None:
    for key, value in after.items():
        *path, last = key.split(".")
        inner = values
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = dict(MLX_LM_LORA_DEFAULTS) if part == "lora_parameters" else {}
            inner = inner[part]
        inner[last] = value
