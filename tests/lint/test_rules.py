"""Every rule by its own examples, other ways to make its mistake, and code that comes near."""

from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import mlx_lm
import pytest
from mlx import nn

from mlxdoctor.lint.linter import lint, lint_source
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.lint.rules.pytorch import IN_PLACE
from mlxdoctor.lint.source import SourceFile
from tests.conftest import ROOT
from tests.lint.sources import MISTAKES, NEAR

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\nimport mlx.optimizers as optim\n"


def codes(text: str) -> list[str]:
    if not any(line in text for line in ("import mlx", "from mlx", "import *")):
        text = HEAD + text
    return [hit.code for hit in lint_source(SourceFile.parse(text, Path("train.py")))]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_the_bad_example_is_hit_and_the_good_one_is_not(rule: Rule) -> None:
    assert codes(rule.bad) == [rule.code]
    assert codes(rule.good) == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.code)
def test_every_rule_is_documented(rule: Rule) -> None:
    assert rule.title.endswith(".")
    assert len(rule.documentation) > 100


@pytest.mark.parametrize(
    ("code", "name"), [(code, name) for code, named in MISTAKES.items() for name in named]
)
def test_the_same_mistake_in_other_words(code: str, name: str) -> None:
    assert codes(MISTAKES[code][name]) == [code]


@pytest.mark.parametrize("name", NEAR)
def test_sound_code_that_comes_near(name: str) -> None:
    assert codes(NEAR[name]) == []


MASKED = """
def loss_fn(model, batch, lengths, mask):
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    mask = {}
    losses = nn.losses.cross_entropy(logits, targets) * mask
    return losses.sum() / mx.maximum(mask.sum(), 1)
"""
#: The mask of shifted targets, and whether it is off.
MASKS = {
    "mx.arange(targets.shape[1])[None] < lengths[:, None]": True,
    "mx.arange(targets.shape[1])[None] < lengths[:, None] - 1": False,
    "mx.arange(1, targets.shape[1] + 1) <= lengths[:, 1:]": True,
    "mx.arange(1, targets.shape[1] + 1) < lengths[:, 1:]": False,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 1": True,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 2": False,
    "lengths[:, None] > mx.arange(targets.shape[1])": True,
    "(mx.arange(9) >= 2) & (mx.arange(9) < lengths[:, None])": True,
    "mask[:, :-1]": True,
    "mask[:, 1:]": False,
    "targets != 0": False,
    "mx.arange(9) < target_lengths[:, None]": False,
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    assert codes(MASKED.format(mask)) == (["mask-off-by-one"] if MASKS[mask] else [])


def test_a_mask_made_in_a_helper() -> None:
    helper = "def real(width, lengths):\n    return mx.arange(width)[None] < lengths[:, None]{}\n"
    text = MASKED.format("real(targets.shape[1], lengths)")
    assert codes(text + helper.format("")) == ["mask-off-by-one"]
    assert codes(text + helper.format(" - 1")) == []
    # What the helper is given is a length less already.
    text = MASKED.format("real(targets.shape[1], lengths - 1)")
    assert codes(text + helper.format("")) == []


def test_the_names_are_missing_in_mlx_indeed() -> None:
    modules = {"mlx.core": mx, "mlx.nn": nn, "mlx.optimizers": optim, "mlx.nn.utils": nn.utils}
    for name in IN_PLACE:
        module, _, last = name.rpartition(".")
        assert not hasattr(modules[module], last), name


def test_mlx_lms_tuner_has_two_true_hits() -> None:
    """Both are what they say: 0/0 without a target, and a padding token trained in each row."""
    tuner = Path(mlx_lm.__file__).parent / "tuner"
    found = {(hit.path.name, hit.code) for hit in lint([tuner])}
    assert found == {("trainer.py", "mask-off-by-one"), ("trainer.py", "unguarded-mean")}


@pytest.mark.slow
def test_this_project_is_clean() -> None:
    folders = [ROOT / "mlxdoctor", ROOT / "checks"]
    assert [(hit.path.name, hit.line, hit.code) for hit in lint(folders)] == []
