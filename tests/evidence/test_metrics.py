"""Reading reported figures."""

import json
import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.safety.errors import InputError


def read(tmp_path: Path, content: object, name: str = "evaluation.json") -> ReportedMetrics:
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return ReportedMetrics.read((path,))


def test_perplexity_is_a_loss_and_the_split_is_found(tmp_path: Path) -> None:
    found = read(tmp_path, {"perplexity": 7.66, "split": "valid", "rows": 40})
    metric = next(one for one in found.values if one.name == "perplexity")
    assert metric.loss == pytest.approx(math.log(7.66))
    assert metric.split == "valid"
    assert [one.name for one in found.losses] == ["perplexity"]


@pytest.mark.parametrize(
    ("content", "name", "split"),
    [
        ({"eval_loss": 1.2}, "eval_loss", "valid"),
        ({"test": {"ppl": 3.0}}, "test.ppl", "test"),
        ({"train_loss": 0.1}, "train_loss", "train"),
        ({"results": {"model": {"nll": 2.0}}}, "results.model.nll", None),
    ],
)
def test_nested_and_prefixed_names(
    tmp_path: Path, content: object, name: str, split: str | None
) -> None:
    metric = read(tmp_path, content).losses[0]
    assert (metric.name, metric.split) == (name, split)


def test_the_file_name_can_name_the_split(tmp_path: Path) -> None:
    assert read(tmp_path, {"loss": 1.0}, "evaluation_test.json").losses[0].split == "test"
    assert read(tmp_path, {"loss": 1.0}, "eval_results.json").losses[0].split is None


def test_a_metric_of_the_base_model_is_taken_at_its_word(tmp_path: Path) -> None:
    found = read(tmp_path, {"base_perplexity": 7.66, "perplexity": 3.0})
    assert [one.name for one in found.losses] == ["perplexity"]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_are_no_perplexity_are_left_out(tmp_path: Path, value: float) -> None:
    assert read(tmp_path, {"perplexity": value, "accuracy": 0.5}).losses == ()


def test_other_figures_are_no_loss(tmp_path: Path) -> None:
    found = read(tmp_path, {"accuracy": 0.9, "lossless": 3, "done": True})
    assert [one.name for one in found.values] == ["accuracy", "lossless"]
    assert found.losses == ()


def test_a_file_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no figure"):
        read(tmp_path, {"model": "x"})
    (tmp_path / "cut.json").write_text('{"loss": 1.')
    with pytest.raises(InputError, match="not valid JSON"):
        ReportedMetrics.read((tmp_path / "cut.json",))
