import json
import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.metrics import ReportedMetrics


def read(tmp_path: Path, content: object, name: str = "evaluation.json") -> ReportedMetrics:
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return ReportedMetrics.read((path,))


@pytest.mark.parametrize(
    ("content", "file", "name", "split"),
    [
        ({"eval_loss": 1.2}, "evaluation.json", "eval_loss", "valid"),
        ({"test": {"ppl": 3.0}}, "evaluation.json", "test.ppl", "test"),
        ({"train_loss": 0.1}, "evaluation.json", "train_loss", "train"),
        ({"results": {"model": {"nll": 2.0}}}, "evaluation.json", "results.model.nll", None),
        ({"loss": 1.0, "split": "valid", "rows": 40}, "evaluation.json", "loss", "valid"),
        ({"loss": 1.0}, "evaluation_test.json", "loss", "test"),
        ({"loss": 1.0}, "eval_results.json", "loss", None),
        # A figure of the base model is taken at its word.
        ({"base_perplexity": 7.66, "perplexity": 3.0}, "evaluation.json", "perplexity", None),
    ],
)
def test_a_loss_and_its_split(
    tmp_path: Path, content: object, file: str, name: str, split: str | None
) -> None:
    (metric,) = read(tmp_path, content, file).losses
    assert (metric.name, metric.split) == (name, split)
    assert metric.loss == pytest.approx(
        math.log(3) if "p" in name.rsplit(".", maxsplit=1)[-1] else metric.value
    )


def test_other_figures_are_no_loss(tmp_path: Path) -> None:
    for value in (0.0, -1.0, math.nan, math.inf):
        assert read(tmp_path, {"perplexity": value, "accuracy": 0.5}).losses == ()
    found = read(tmp_path, {"accuracy": 0.9, "lossless": 3, "done": True})
    assert [one.name for one in found.values] == ["accuracy", "lossless"]
    assert found.losses == ()
