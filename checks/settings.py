"""Whether mlx-lm takes the settings, does what they ask for, and finds the files they name.

What it finds. Keys that mlx-lm does not know and ignores without a warning, values that it stops
at, and numbers far from those that trainers use. Before a run also keys of `lora_parameters` that
no module of the base model has, a missing test split, and an adapter folder that holds an older
adapter.

Why it matters. `mlx_lm.lora` reads the keys that it knows and ignores the others without a word:
`learning-rate`, `epochs` or a `rank` at the top level train at its defaults. What it does stop at
it often finds after the model has been loaded and the rows were tokenized. It passes over a key of
`lora_parameters` that it finds no module for: with none left, nothing is trained. A weight decay of
100 or an eps of 1e8 is taken as it is, and undoes or stops every update. Checkpoints of two runs in
one folder are taken for one run's by people and by loaders.

How it is measured. By what mlx-lm 0.32.2 does with each key; the number of layers, the modules'
names and the numbers' types come from the base model's files, if they are here. After a run only
keys and ranges are examined, since mlx-lm accepted the values, and only if mlx-lm itself wrote the
configuration. The settings of the optimizer in use are held against a table of usual ranges.

When it is wrong. A later mlx-lm may know more keys, and a trainer of one's own has its own. Files
may lie elsewhere on the machine that will train.

What to do. What the finding says: each names the key, and what to write.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mlxdoctor.check import DoesNotArise, check
from mlxdoctor.evidence.adapter import FILE_NAMES, Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.mlx_lm_defaults import (
    MEANT,
    MLX_LM_ADAPTER_PATH,
    MLX_LM_DEFAULTS,
    MLX_LM_KEYS,
    MLX_LM_LORA_DEFAULTS,
    NEEDS,
    SCHEDULES,
    is_numbers,
    value_at,
)
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.run_files import CHECKPOINT_NAME
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm, target_modules, unmatched_keys
from mlxdoctor.safety.quoting import quoted

#: Word in an ignored key -> how to compute mlx-lm's value from the value of that key.
_HOW = {
    "epoch": "rows / batch_size iterations are one pass over the rows",
    "alpha": "alpha / rank",
}
#: Setting -> its lowest and highest usual value. Defaults of PyTorch and MLX are a decay of 0 to
#: 0.01, an eps of 1e-8, betas of 0.9 and 0.999, a momentum of 0.9 and a dropout of 0.1 at the most.
#: Practice goes on to a decay of 0.3 (ViT), an eps of 1e-3 (half precision), betas of 0.5 (GANs)
#: and 0 (RMSProp), and a dropout of 0.5. Of 253 configurations three are outside, all of faulty
#: runs.
USUAL: Mapping[str, tuple[float, float]] = {
    "weight_decay": (0.0, 1.0),
    "eps": (1e-12, 1e-3),
    "betas.1": (0.0, 0.99999),
    "betas.2": (0.5, 0.99999),
    "momentum": (0.0, 0.999),
    "lora_parameters.dropout": (0.0, 0.7),
}


@check(
    codes={
        "ignored": Symptom.warning(
            "mlx-lm does not know a key, and trains with its own default in its place",
            says="mlx_lm.lora has no key {key} and passes over it: it trains with {meant} "
            "[{default}|at its default].",
            expected="keys of mlx_lm.lora",
            fix="write {meant} instead of {key}[: {how}]",
            in_a_plan=Severity.ERROR,
        ),
        "unknown": Symptom.info(
            "mlx-lm passes over a key",
            says="mlx_lm.lora has no key {key}, and passes over it.",
            expected="keys of mlx_lm.lora",
        ),
        "misplaced": Symptom.error(
            "a key stands where mlx-lm does not look for it",
            says="{key} ({value}) stands under lora_parameters, where mlx_lm.lora passes over it: "
            "it trains with {used}.",
            expected="lora_parameters with rank, scale, dropout and keys alone",
            fix="move {key} out of lora_parameters, to the left margin",
        ),
        "refused": Symptom.error(
            "mlx-lm stops at a setting",
            says="{key} is {value}, where mlx-lm needs {needed}.",
            expected="{needed}",
            fix="set {key} to {needed}",
        ),
        "out-of-range": Symptom.warning(
            "a setting is far from any value that trainers use",
            says="{key} is {value:.4g}, where trainers use {lowest:.4g} to {highest:.4g}.",
            expected="{lowest:.4g} to {highest:.4g}",
            fix="set {key} to its default, or to a value in this range",
            in_a_plan=Severity.ERROR,
        ),
        "older-adapter": Symptom.warning(
            "the folder for the adapter holds one already",
            says="{folder} already holds {files}: the run would overwrite some files there, and "
            "leave the others.",
            expected="a folder of its own",
            fix="set adapter_path to another folder",
        ),
        "no-target": Symptom.error(
            "a key of lora_parameters.keys is no module of the base model",
            says="No module of the base model is called {names}: [mlx-lm passes over {unmatched} "
            "of {keys:* key}|no LoRA layer would be made, and nothing trained].",
            expected="names of the base model's modules, such as self_attn.q_proj",
            fix="[write {meant}|look the names up with `mlxdoctor inspect`]",
        ),
    },
)
def settings(
    config: TrainingConfig,
    *,
    base: BaseModel | None,
    dataset: Dataset | None,
    adapter: Adapter | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
) -> Iterator[Sign]:
    if config.origin != "mlx-lm":
        raise DoesNotArise("the configuration is not one of mlx_lm.lora")
    has_losses = log is not None and log.main.get("train_loss") is not None
    has_trained = adapter is not None or has_losses
    if has_trained and not by_mlx_lm(config):
        raise DoesNotArise("the run was made, and not by mlx_lm.lora itself")
    yield from _keys(config)
    yield from _out_of_range(config)
    # mlx-lm refuses settings before it trains.
    if not has_trained:
        yield from _refused(config, base)
    if planned is not None:
        yield from _files(config, dataset)
    if planned is not None or has_trained:
        yield from _targets(config, base)


def _keys(config: TrainingConfig) -> Iterator[Sign]:
    """Keys that mlx-lm passes over, except `mlxdoctor`, the table of the reference trainer."""
    values = config.values
    for key in values:
        if key in MLX_LM_KEYS or key == "mlxdoctor":
            continue
        meant = _meant(key)
        value, default = value_at(values, meant), MLX_LM_DEFAULTS.get(meant)
        # A configuration that mlx-lm saved lists every key, the user's or not.
        is_default = value == default != values[key] and by_mlx_lm(config)
        if meant and (value is None or is_default):
            how = next((how for word, how in _HOW.items() if word in key), None)
            measured = {"key": quoted(key), "meant": meant, "default": default, "how": how}
            yield Sign("ignored", measured, where=key)
        else:
            yield Sign("unknown", {"key": quoted(key)}, where=key)
    lora = values.get("lora_parameters")
    for key, value in lora.items() if isinstance(lora, Mapping) else ():
        if (place := f"lora_parameters.{key}") in NEEDS:
            continue
        used = values.get(key, MLX_LM_DEFAULTS.get(key))
        if key in MLX_LM_KEYS and used is not None and used != value:
            measured = {"key": quoted(key), "value": quoted(str(value)), "used": quoted(str(used))}
            yield Sign("misplaced", measured, where=place)
        else:
            yield Sign("unknown", {"key": quoted(place)}, where=place)


def _out_of_range(config: TrainingConfig) -> Iterator[Sign]:
    """Numbers of the optimizer in use and of LoRA that lie outside their usual range."""
    table = f"optimizer_config.{config.optimizer}."
    values = {table + str(key): value for key, value in config.optimizer_config.items()}
    betas = values.pop(f"{table}betas", None)
    for number, value in enumerate(betas if is_numbers(betas) else (), start=1):
        values[f"{table}betas.{number}"] = value
    values["lora_parameters.dropout"] = config.dropout
    for place, value in values.items():
        usual = USUAL.get(place) or USUAL.get(place.removeprefix(table))
        if usual is None or not is_numbers([value]) or usual[0] <= value <= usual[1]:
            continue
        measured = {"key": quoted(place), "value": value, "lowest": usual[0], "highest": usual[1]}
        yield Sign("out-of-range", measured, where=place)


def _meant(key: str) -> str:
    """The key of mlx-lm that an unknown key means; "" if none is known."""
    plain = key.lower().replace("-", "_").strip()
    close = get_close_matches(plain, MLX_LM_KEYS, n=1, cutoff=0.85)
    return MEANT.get(plain) or next(iter(close), "")


def _refused(config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    values = config.values
    is_lora, schedule = config.fine_tune_type != "full", values.get("lr_schedule")
    for place, need in NEEDS.items():
        value = value_at(values, place)
        if place == "optimizer" and isinstance(value, str):
            value = value.lower()
        # With a schedule `learning_rate` is not read; without LoRA `lora_parameters` is not.
        is_read = place != "learning_rate" or schedule is None
        is_read &= is_lora or not place.startswith("lora_parameters")
        if is_read and value is not None and not need.holds(value):
            yield _refusal(place, quoted(str(value)), need.text)
    yield from _incomplete(values, is_lora=is_lora)
    there_are = base.num_layers if base is not None else None
    if there_are is not None and (config.num_layers or 0) > there_are:
        stated = f"{config.num_layers}"
        stated += ", mlx-lm's default" if config.is_default("num_layers") else ""
        needed = f"no more than the {there_are} layers of the base model"
        fix = "set num_layers to -1, which is all of them"
        yield _refusal("num_layers", stated, needed, fix, advised_num_layers=-1)


def _incomplete(values: Mapping[str, Any], *, is_lora: bool) -> Iterator[Sign]:
    """Keys that a stated table lacks: mlx-lm's defaults replace a whole table or nothing."""
    lora, schedule = values.get("lora_parameters"), values.get("lr_schedule")
    for key, default in MLX_LM_LORA_DEFAULTS.items():
        if is_lora and isinstance(lora, Mapping) and key not in lora:
            place = f"lora_parameters.{key}"
            is_alpha = key == "scale" and "alpha" in lora
            hint = "; alpha divided by the rank is a scale" if is_alpha else ""
            fix = f"add {key} to lora_parameters: {default:g} is mlx-lm's own{hint}"
            yield _refusal(place, "not stated", NEEDS[place].text, fix=fix)
    if not isinstance(schedule, Mapping):
        return
    name, arguments = schedule.get("name"), schedule.get("arguments")
    if name is None:
        yield _refusal("lr_schedule.name", "not stated", NEEDS["lr_schedule.name"].text)
    counts = SCHEDULES.get(name, ()) if isinstance(name, str) else ()
    if counts and (arguments is None or (is_numbers(arguments) and len(arguments) not in counts)):
        needed = f"a list of {' or '.join(map(str, counts))} numbers, the rate first"
        yield _refusal("lr_schedule.arguments", quoted(str(arguments)), needed)


def _refusal(key: str, value: str, needed: str, fix: str | None = None, **advised: int) -> Sign:
    measured: dict[str, Measurement] = {"key": key, "value": value, "needed": needed, **advised}
    return Sign("refused", measured, where=key, fix=fix)


def _files(config: TrainingConfig, dataset: Dataset | None) -> Iterator[Sign]:
    """A missing test split, and an adapter folder that is in use."""
    if config.values.get("test") is True and dataset is not None and dataset.path.is_dir():
        split = dataset.splits.get("test")
        if split is None or not split.rows:
            fix = "add test.jsonl, or leave `test` out"
            yield _refusal("test", "true", "a test.jsonl with rows", fix)
    stated = config.values.get("adapter_path")
    folder = stated if isinstance(stated, str) and stated else MLX_LM_ADAPTER_PATH
    try:
        names = sorted(path.name for path in Path(folder).iterdir())
    except (OSError, ValueError):
        return
    older = [name for name in names if name in FILE_NAMES or CHECKPOINT_NAME.match(name)]
    if older and config.resume_adapter_file is None:
        measured = {"folder": quoted(folder), "files": some_of(older)}
        yield Sign("older-adapter", measured, where="adapter_path")


def _targets(config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    """Keys of `lora_parameters` that no module of the base model has."""
    keys = config.keys
    if keys is None or config.fine_tune_type == "full" or not (base and base.num_layers):
        return
    unmatched = unmatched_keys(config, base.linear_shapes)
    if not unmatched:
        return
    # The last part of a module's name -> its name within a layer, as mlx-lm's keys have it.
    names = {
        name.rpartition(".")[2]: name
        for layer, name in map(layer_of, base.linear_shapes)
        if layer is not None
    }
    meant = some_of([names[key] for key in unmatched if key in names]) or None
    no_targets = len(unmatched) == len(keys) and not target_modules(config, base)
    counts = {"keys": len(keys), "unmatched": None if no_targets else len(unmatched)}
    figures = {**counts, "names": some_of(unmatched), "meant": meant}
    severity = None if no_targets else Severity.WARNING
    yield Sign("no-target", figures, where="lora_parameters.keys", severity=severity)
