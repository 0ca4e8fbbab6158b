"""What every rule claims, seen by running its bad example and its good one."""

from importlib import import_module
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest

from mlxdoctor.lint.rule import Rule, rules
from tests.lint import tiny

PROOFS = Path(__file__).parent / "proofs"


@pytest.fixture
def tiny_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`mlx_lm.load` gives a tiny model, and files are written where they may be."""
    monkeypatch.setattr(mlx_lm, "load", lambda *_, **__: (tiny.TinyModel(), None))
    monkeypatch.setattr(mlx_lm.utils, "load", mlx_lm.load)
    monkeypatch.chdir(tmp_path)
    mx.random.seed(0)


@pytest.mark.usefixtures("tiny_world")
@pytest.mark.parametrize("rule", rules(), ids=lambda one: one.code)
def test_the_examples_do_what_the_rule_says(rule: Rule) -> None:
    proof = import_module(f"tests.lint.proofs.{rule.code.replace('-', '_')}")
    assert proof.BAD != proof.GOOD
    assert proof.observe(tiny.run(rule.bad)) == proof.BAD
    assert proof.observe(tiny.run(rule.good)) == proof.GOOD


def test_every_proof_is_of_a_rule() -> None:
    proofs = {path.stem.replace("_", "-") for path in PROOFS.glob("[a-z]*.py")}
    assert proofs == {one.code for one in rules()}
