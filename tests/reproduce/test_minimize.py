"""Real runs that differ from a healthy one in many keys, of which one matters, or two."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.causes import load_causes
from mlxdoctor.experiments.shared.bench import Bench, Failure
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.recipe import recipe_of
from mlxdoctor.experiments.shared.rules import Limits
from mlxdoctor.reproduce.differences import Healthy
from mlxdoctor.reproduce.minimize import Minimized, minimize
from mlxdoctor.run import Run
from tests.reproduce.real import SOUND, trained

pytestmark = pytest.mark.slow(80)
#: A rate that is far too high shows in these; a sound one is sound.
ITERATIONS = 12
#: Keys that differ and do no harm.
HARMLESS: Mapping[str, Any] = {"max_seq_length": 200, "rank": 6, "dropout": 0.02}
HEALTHY = Healthy("healthy", {key: one for key, one in SOUND.items() if key != "mlxdoctor"})


def bench_of(run: Path, work: Path) -> Bench:
    """The bench of a run, for short reruns with one or two seeds."""
    report = diagnose([run])
    recipe = recipe_of(Run.discover([run], allow_model=False))
    failure = Failure(report.outcomes, load_causes(), Limits(), (0, 1), ITERATIONS)
    return Bench(Laboratory(recipe, work), failure)


def keys(found: Minimized) -> list[list[str]]:
    """The keys of each part."""
    return [[one.key for one in part] for part in found.parts]


def test_one_key_of_many_is_found_within_the_time_and_after_it(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", iters=ITERATIONS, learning_rate=8e-3, **HARMLESS)
    bench = bench_of(run, tmp_path / "work")
    late = replace(bench, lab=replace(bench.lab, deadline=time.monotonic()), trials=[])
    cut = minimize(late, HEALTHY)
    assert cut.ending == "unfinished"
    assert "the same command goes on from there" in cut.reason
    assert cut.fix is None
    found = minimize(bench, HEALTHY)
    assert found.ending == "minimal"
    assert {one.key for one in found.differing} == {
        *("learning_rate", "max_seq_length", "lora_parameters.rank", "lora_parameters.dropout")
    }
    assert keys(found) == [["learning_rate"]]
    assert found.fix is not None
    assert found.fix.after == {"learning_rate": SOUND["learning_rate"]}
    assert '-    "learning_rate": 0.008,' in found.fix.diff
    assert "learning_rate brings the failure by itself" in found.reason
    # Every probe is kept: without any time it is all there again.
    again = minimize(replace(late, trials=[]), HEALTHY)
    assert again == found
    marked = {one.key: one.matters for one in found.shown.keys}
    assert [key for key, matters in marked.items() if matters] == ["learning_rate"]


def test_two_keys_that_fail_only_together(tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run", iters=ITERATIONS, learning_rate=1.2e-3, scale=80.0, max_seq_length=200
    )
    found = minimize(bench_of(run, tmp_path / "work"), HEALTHY)
    assert found.ending == "minimal"
    assert keys(found) == [["learning_rate", "lora_parameters.scale"]]
    assert "learning_rate and lora_parameters.scale bring it only together" in found.reason


def test_a_healthy_configuration_that_fails_here_proves_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", iters=ITERATIONS, learning_rate=8e-3, rank=6)
    bench = bench_of(run, tmp_path / "work")
    found = minimize(bench, replace(HEALTHY, values={**HEALTHY.values, "learning_rate": 1e-2}))
    assert found.ending == "impossible"
    assert "the healthy configuration fails in the same way" in found.reason
    same = minimize(bench, Healthy("itself", bench.lab.recipe.values))
    assert same.ending == "impossible"
    assert "no key" in same.reason
