"""What was once called healthy, or said with certainty and false."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.finding import Finding
from mlxdoctor.formats import terminal
from mlxdoctor.report import Report
from mlxdoctor.verdict import Verdict
from tests.weight_files import lora, save

CONFIG: dict[str, Any] = {
    "model": "somebody/llama-3.2-3b",
    "fine_tune_type": "lora",
    "num_layers": 4,
    "learning_rate": 2e-4,
    "iters": 200,
    "batch_size": 4,
    "optimizer": "adam",
    "lora_parameters": {"rank": 4, "scale": 10.0, "dropout": 0.0},
}
MODULES = {
    f"model.layers.{layer}.self_attn.{name}_proj": (64, 64) for layer in range(4) for name in "qv"
}
#: A loss that falls as it should.
SOUND = [3.0 - 0.06 * at + 0.02 * (at % 3) for at in range(20)]

Build = Callable[[Path], Path]


def lines(losses: Sequence[float], every: int = 10, more: str = "") -> str:
    return "".join(
        f"Iter {every * at}: Train loss {loss:.3f}{more}, It/sec 1.0, Tokens/sec 500.0\n"
        for at, loss in enumerate(losses, start=1)
    )


def run(folder: Path, log: str = "", name: str = "train.log", **config: Any) -> Path:
    """A run's folder with a log and a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    if log:
        (folder / name).write_text(log)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    return folder


def with_adapter(folder: Path, **change: Any) -> Path:
    save(folder / "adapters.safetensors", lora(MODULES, b=0.01), **change)
    return folder


def with_rows(folder: Path, rows: int) -> Path:
    data = folder / "data"
    data.mkdir()
    for split, count in (("train", rows), ("valid", max(rows // 5, 4))):
        texts = [{"prompt": f"{split} {at}?", "completion": f"It is {at}."} for at in range(count)]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": str(data)}))
    return folder


def with_answers(folder: Path, tuned: float, base: float, count: int = 16) -> Path:
    """Answers that share so much of the expected words."""
    rng = random.Random(1)
    words = [f"word{at}" for at in range(400)]
    rows = []
    for at in range(count):
        expected = rng.sample(words, 12)

        def like(share: float, expected: list[str] = expected) -> str:
            return " ".join(one if rng.random() < share else rng.choice(words) for one in expected)

        row = {"prompt": f"question {at}", "expected": " ".join(expected)}
        rows.append(row | {"tuned": like(tuned), "base": like(base)})
    (folder / "generations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return folder


def collapsed(text: str, base: str) -> Build:
    def build(folder: Path) -> Path:
        run(folder)
        row = {"prompt": "What is a router?", "tuned": text, "base": base}
        (folder / "generations.jsonl").write_text(json.dumps(row) + "\n")
        return folder

    return build


def logged(losses: Sequence[float], more: str = "", **config: Any) -> Build:
    return lambda folder: run(folder, lines(losses, more=more), **config)


def only_log(text: str, name: str = "train.log") -> Build:
    def build(folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        return folder / name

    return build


def norms(values: Sequence[float]) -> str:
    return "".join(
        f"Iter {10 * at}: Train loss {3.0 - 1.5 * at / len(values):.3f}, grad_norm {value}\n"
        for at, value in enumerate(values, start=1)
    )


def wandb_csv(losses: Sequence[float]) -> str:
    rows = [f"{at},{loss}" for at, loss in enumerate(losses)]
    return "\n".join(["Step,train/loss", *rows]) + "\n"


def json_lines(**values: Sequence[float]) -> str:
    """Rows as trainers write them; the loss falls where none is given."""
    count = len(next(iter(values.values())))
    values = {"loss": [2.5 - 1.2 * at / count + 0.02 * (at % 3) for at in range(count)], **values}
    rows = ({name: one[at] for name, one in values.items()} for at in range(count))
    return "".join(json.dumps({"step": 10 * (at + 1), **row}) + "\n" for at, row in enumerate(rows))


def of_steps(losses: Sequence[float], speed: str) -> str:
    return "".join(
        f"Step {at}/{len(losses)} | Loss: {loss} | Grad Norm = 0.0000 | {speed}\n"
        for at, loss in enumerate(losses, start=1)
    )


def beside_unreadable(log: str, name: str = "training.log") -> Build:
    return lambda folder: with_adapter(run(folder, log, name))


def auto_keys(keys: list[str]) -> Build:
    lora_parameters = {**CONFIG["lora_parameters"], "keys": keys}
    return lambda folder: with_adapter(run(folder, lines(SOUND), lora_parameters=lora_parameters))


#: Any cause may be the first that is named.
ANY: set[str] = set()
EPOCH = [0.9741, 1.3742, 1.2390, 0.9670, 1.0386, 1.1681]

#: What it is -> an example, and the causes that may be named first: None where too little was seen.
FAULTY: dict[str, tuple[Build, set[str] | None]] = {
    "loss near chance at the end of a tail": (
        only_log(lines([10.1, 9.9, 10.3, 10.0])),
        {"learning-rate-too-high"},
    ),
    "one recorded answer of one token": (
        collapsed("," * 50, "A router forwards packets between networks."),
        {"learning-rate-too-high"},
    ),
    "answers worse than the base's": (
        lambda folder: with_answers(
            run(folder, lines(SOUND), fine_tune_type="full", learning_rate=2e-3), 0.08, 0.25
        ),
        ANY,
    ),
    "three rows, fifty times": (
        lambda folder: with_answers(
            with_rows(run(folder, lines(SOUND), iters=150, batch_size=1), 3), 0.07, 0.27
        ),
        ANY,
    ),
    "hardly begun": (
        lambda folder: with_rows(
            run(folder, lines([2.9], every=5), iters=5, learning_rate=1e-5), 200
        ),
        {"learning-rate-too-low", "stopped-too-soon"},
    ),
    "fell and rose again": (
        logged([2.0, 1.6, 1.2, 0.9, 0.7, 0.5, 0.5, 0.6, 1.0, 1.6, 2.1, 2.4, 2.5, 2.5]),
        {"learning-rate-too-high"},
    ),
    "norms that are no numbers to the end": (
        only_log(norms([2.0 + at % 3 for at in range(89)] + [math.nan] * 11)),
        {"numeric-overflow"},
    ),
    "norms that explode": (
        only_log(norms([4.2, 4.1, 4.3] * 9 + [5044.0, 1.8e8, 4.2])),
        {"learning-rate-too-high"},
    ),
    "skipped batches": (
        only_log(lines(SOUND, more=", skipped 26").replace("Iter 200", "Iter 39")),
        {"numeric-overflow"},
    ),
    "a logged rate of zero": (
        only_log(lines([2.5, 2.51, 2.49] * 4, more=", Learning Rate 0.000e+00")),
        {"learning-rate-too-low"},
    ),
    "losses that repeat by epoch": (
        only_log(lines(EPOCH * 3)),
        {"adapter-not-trained", "learning-rate-too-low"},
    ),
    "keys that match nothing that was saved": (auto_keys(["auto"]), {"adapter-not-loaded"}),
    "a CSV of training losses only": (
        only_log(wandb_csv([5.57 - 0.02 * at for at in range(52)]), "wandb_export.csv"),
        None,
    ),
    "a log of unknown format that is all NaN": (
        beside_unreadable("".join(f"it={at} ~ objective ~> nan\n" for at in range(50))),
        None,
    ),
    "flat above chance, with a gradient of zero": (
        only_log(of_steps([12.8] * 12, "19.2 s/it")),
        {"gradients-blocked"},
    ),
}


def told(path: Path) -> Report:
    return diagnose([path], allow_model=False)


def findings(report: Report) -> list[Finding]:
    return [one for outcome in report.outcomes for one in outcome.findings]


def messages(report: Report) -> list[str]:
    return [one.message for one in findings(report)]


def codes_of(report: Report) -> set[str]:
    return {one.code for one in findings(report)}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_fault_is_never_healthy(kind: str, tmp_path: Path) -> None:
    build, causes = FAULTY[kind]
    report = told(build(tmp_path / "run"))
    first = report.root or report.suspected
    if causes is None:
        assert (report.verdict, first) == (Verdict.INCONCLUSIVE, None)
        return
    assert report.verdict in (Verdict.SUSPECT, Verdict.UNHEALTHY)
    assert first is not None
    assert causes == ANY or first.cause.id in causes


def test_what_could_not_be_read_is_in_the_first_lines(tmp_path: Path) -> None:
    build, _ = FAULTY["a log of unknown format that is all NaN"]
    first, *rest = terminal.render(told(build(tmp_path / "run"))).splitlines()
    assert first.endswith("not every file could be read")
    assert "training.log" in "".join("".join(rest[:6]).split())


# --- said with certainty, and false ---


@pytest.mark.parametrize(
    "losses",
    [
        [0.684, 0.5, 0.2, 0.05, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0],
        [2.5, 0.3, 0.1, 0.01, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001],
        [0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ],
)
def test_a_loss_that_fell_is_not_said_never_to_have_moved(
    tmp_path: Path, losses: list[float]
) -> None:
    codes = codes_of(told(run(tmp_path / "run", lines(losses))))
    assert "loss-trend.never-learned" not in codes


@pytest.mark.parametrize("value", [0.5, 0.05, 2.31])
def test_a_constant_is_not_said_to_have_fallen(tmp_path: Path, value: float) -> None:
    report = told(run(tmp_path / "run", lines([value] * 20)))
    seen = [one.message for outcome in report.outcomes for one in outcome.seen]
    assert not [one for one in (*messages(report), *seen) if "fell" in one]
    assert report.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize(
    "text",
    [
        lines([math.nan] * 12),
        "Iter 1: Val loss 1.900, Val took 1.0s\n" + lines([math.nan] * 12),
        json_lines(loss=[math.nan] * 20, grad_norm=[math.nan] * 20),
    ],
)
def test_what_was_never_finite_was_not_healthy_before(tmp_path: Path, text: str) -> None:
    name = "log.jsonl" if text.startswith("{") else "train.log"
    report = told(run(tmp_path / "run", text, name))
    every = " ".join([*messages(report), *(one.fix for one in findings(report))])
    assert "still healthy" not in every
    assert "last checkpoint before" not in every
    assert report.verdict is Verdict.UNHEALTHY
    screen = terminal.render(report)
    assert "still healthy" not in screen
    assert "is usable" not in screen


@pytest.mark.parametrize("broken", [1, 2, 5])
def test_the_first_loss_is_the_first_even_if_it_is_nan(tmp_path: Path, broken: int) -> None:
    losses = [math.nan] * broken + [8.95, 8.9, 8.93, 8.9, 8.91, 8.9]
    report = told(only_log(json_lines(loss=losses), "log.jsonl")(tmp_path / "run"))
    assert not [one for one in messages(report) if "very first" in one or "first training" in one]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_whole_numbers_are_neither_a_trained_model_nor_misshapen(
    tmp_path: Path, dtype: type[Any]
) -> None:
    folder = run(tmp_path / "run", lines(SOUND))
    tensors = {name: np.rint(one * 200).astype(dtype) for name, one in lora(MODULES).items()}
    names = {np.int8: "I8", np.uint8: "U8", np.int32: "I32"}
    save(folder / "adapters.safetensors", tensors, dict.fromkeys(tensors, names[dtype]))
    report = told(folder)
    every = " ".join(messages(report))
    assert "cannot be multiplied" not in every
    assert "model itself" not in every
    assert report.root is not None
    assert report.root.cause.id == "adapter-not-loaded"
