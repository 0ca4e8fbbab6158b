"""What was once called healthy, or said with certainty and false."""

import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.lab.harness import write_lines
from mlxdoctor.api import diagnose
from mlxdoctor.formats import terminal
from mlxdoctor.report import Report
from mlxdoctor.verdict import Verdict
from tests.weight_files import lora, save, write_config

CONFIG: dict[str, Any] = {
    "model": "somebody/llama-3.2-3b",
    "num_layers": 4,
    "learning_rate": 2e-4,
    "iters": 200,
    "batch_size": 4,
}
MODULES = {
    f"model.layers.{layer}.self_attn.{name}_proj": (64, 64) for layer in range(4) for name in "qv"
}
#: A loss that falls as it should.
SOUND = [3.0 - 0.06 * at + 0.02 * (at % 3) for at in range(20)]
#: Of each word of an expected answer, the chance that the tuned and the base model say it.
Shares = tuple[float, float]


def lines(losses: Sequence[float], every: int = 10, more: str = "") -> str:
    return "".join(
        f"Iter {every * at}: Train loss {loss:.3f}{more}, It/sec 1.0, Tokens/sec 500.0\n"
        for at, loss in enumerate(losses, start=1)
    )


def made(
    folder: Path,
    log: str = "",
    name: str = "train.log",
    *,
    rows: int = 0,
    shares: Shares | None = None,
    is_saved: bool = False,
    **config: Any,
) -> Path:
    """A run's folder with a configuration, and what else is asked for."""
    if rows:
        config |= {"data": str(folder / "data")}
    write_config(folder, **CONFIG | config)
    if log:
        (folder / name).write_text(log)
    if is_saved:
        save(folder / "adapters.safetensors", lora(MODULES, b=0.01))
    for split, count in (("train", rows), ("valid", max(rows // 5, 4))) if rows else ():
        texts = [{"prompt": f"{split} {at}?", "completion": f"It is {at}."} for at in range(count)]
        write_lines(folder / "data" / f"{split}.jsonl", texts)
    if shares:
        write_lines(folder / "generations.jsonl", answers_of(*shares))
    return folder


def answers_of(tuned: float, base: float) -> Sequence[dict[str, str]]:
    rng, words = random.Random(1), [f"word{at}" for at in range(400)]
    answers = []
    for at in range(16):
        expected = rng.sample(words, 12)
        answers.append({"prompt": f"question {at}", "expected": " ".join(expected)})
        for name, share in (("tuned", tuned), ("base", base)):
            said = (word if rng.random() < share else rng.choice(words) for word in expected)
            answers[-1][name] = " ".join(said)
    return answers


def norms(values: Sequence[float]) -> str:
    return "".join(
        f"Iter {10 * at}: Train loss {3.0 - 1.5 * at / len(values):.3f}, grad_norm {value}\n"
        for at, value in enumerate(values, start=1)
    )


#: A log alone -> the causes that may be named first.
FAULTY_LOGS: dict[str, tuple[str, set[str]]] = {
    "norms that are no numbers to the end": (
        norms([2.0 + at % 3 for at in range(89)] + [math.nan] * 11),
        {"numeric-overflow"},
    ),
    "norms that explode": (
        norms([4.2, 4.1, 4.3] * 9 + [5044.0, 1.8e8, 4.2]),
        {"learning-rate-too-high"},
    ),
    "a logged rate of zero": (
        lines([2.5, 2.51, 2.49] * 4, more=", Learning Rate 0.000e+00"),
        {"learning-rate-too-low"},
    ),
    "losses that repeat by epoch": (
        lines([0.9741, 1.3742, 1.2390, 0.9670, 1.0386, 1.1681] * 3),
        {"adapter-not-trained", "learning-rate-too-low"},
    ),
}
#: What is in a run's folder, and the causes that may be named first; any where none is.
FAULTY_RUNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "answers worse than the base's": (
        {"log": lines(SOUND), "fine_tune_type": "full", "learning_rate": 2e-3}
        | {"shares": (0.08, 0.25)},
        set(),
    ),
    "three rows, fifty times": (
        {"log": lines(SOUND), "iters": 150, "batch_size": 1, "rows": 3, "shares": (0.07, 0.27)},
        set(),
    ),
    "hardly begun": (
        {"log": lines([2.9], every=5), "iters": 5, "learning_rate": 1e-5, "rows": 200},
        {"learning-rate-too-low", "stopped-too-soon"},
    ),
    "fell and rose again": (
        {"log": lines([2, 1.6, 1.2, 0.9, 0.7, 0.5, 0.5, 0.6, 1, 1.6, 2.1, 2.4, 2.5, 2.5])},
        {"learning-rate-too-high"},
    ),
    "keys that match nothing that was saved": (
        {"log": lines(SOUND), "is_saved": True}
        | {"lora_parameters": {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["auto"]}},
        {"adapter-not-loaded"},
    ),
}


def told(path: Path) -> Report:
    return diagnose([path], allow_model=False)


def told_of_log(folder: Path, text: str, name: str = "train.log") -> Report:
    path = folder / name
    path.write_text(text)
    return told(path)


@pytest.mark.parametrize("kind", [*FAULTY_LOGS, *FAULTY_RUNS])
def test_a_fault_is_never_healthy(kind: str, tmp_path: Path) -> None:
    if kind in FAULTY_LOGS:
        text, causes = FAULTY_LOGS[kind]
        report = told_of_log(tmp_path, text)
    else:
        parts, causes = FAULTY_RUNS[kind]
        report = told(made(tmp_path / "run", **parts))
    first = report.root or report.suspected
    assert report.verdict in (Verdict.SUSPECT, Verdict.UNHEALTHY)
    assert first is not None
    assert not causes or first.cause.id in causes


def test_training_losses_alone_say_too_little(tmp_path: Path) -> None:
    rows = [f"{at},{5.57 - 0.02 * at}" for at in range(52)]
    report = told_of_log(tmp_path, "\n".join(["Step,train/loss", *rows]), "wandb_export.csv")
    assert (report.verdict, report.root or report.suspected) == (Verdict.INCONCLUSIVE, None)


def test_what_could_not_be_read_is_in_the_first_lines(tmp_path: Path) -> None:
    log = "".join(f"it={at} ~ objective ~> nan\n" for at in range(50))
    report = told(made(tmp_path / "run", log, "training.log", is_saved=True))
    assert (report.verdict, report.root or report.suspected) == (Verdict.INCONCLUSIVE, None)
    first, *rest = terminal.render(report).splitlines()
    assert first.endswith("not every file could be read")
    assert "training.log" in "".join("".join(rest[:6]).split())


#: Losses -> what neither a code nor a sentence on them may say.
NOT_SAID = {
    "fell, and has no further to fall": ([2.5, 0.3, 0.1, 0.01, *[0.001] * 8], "never-learned"),
    "fell to zero at once": ([0.9, *[0.0] * 7], "never-learned"),
    "a constant": ([0.05] * 20, "fell"),
    "the first is NaN": ([math.nan, 8.95, 8.9, 8.93, 8.9, 8.91], "very first|first training"),
    "the first five are NaN": (
        [*[math.nan] * 5, 8.95, 8.9, 8.93, 8.9],
        "very first|first training",
    ),
}


@pytest.mark.parametrize("kind", NOT_SAID)
def test_what_is_not_so_is_not_said(kind: str, tmp_path: Path) -> None:
    losses, pattern = NOT_SAID[kind]
    report = told(made(tmp_path / "run", lines(losses)))
    texts = [f"{finding.code}: {finding.message}" for finding in report.findings]
    texts += [sign.message for outcome in report.outcomes for sign in outcome.seen]
    assert not [text for text in texts if re.search(pattern, text)]
    assert report.verdict is not Verdict.HEALTHY


@pytest.mark.parametrize(
    "text",
    [
        lines([math.nan] * 12),
        "Iter 1: Val loss 1.900, Val took 1.0s\n" + lines([math.nan] * 12),
        "".join(f'{{"step": {at}, "loss": NaN, "grad_norm": NaN}}\n' for at in range(1, 21)),
    ],
)
def test_what_was_never_finite_was_not_healthy_before(tmp_path: Path, text: str) -> None:
    name = "log.jsonl" if text.startswith("{") else "train.log"
    report = told(made(tmp_path / "run", text, name))
    every = " ".join(f"{finding.message} {finding.fix}" for finding in report.findings)
    assert "still healthy" not in every
    assert "last checkpoint before" not in every
    assert report.verdict is Verdict.UNHEALTHY
    screen = terminal.render(report)
    assert "still healthy" not in screen
    assert "is usable" not in screen


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_whole_numbers_are_neither_a_trained_model_nor_misshapen(
    tmp_path: Path, dtype: type[Any]
) -> None:
    folder = made(tmp_path / "run", lines(SOUND))
    tensors = {name: np.rint(one * 200).astype(dtype) for name, one in lora(MODULES).items()}
    names = {np.int8: "I8", np.uint8: "U8", np.int32: "I32"}
    save(folder / "adapters.safetensors", tensors, dict.fromkeys(tensors, names[dtype]))
    report = told(folder)
    every = " ".join(finding.message for finding in report.findings)
    assert "cannot be multiplied" not in every
    assert "model itself" not in every
    assert report.root.cause.id == "adapter-not-loaded"
