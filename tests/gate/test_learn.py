from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxdoctor.check import discover
from mlxdoctor.gate.bands import QUANTITIES, WIDENED, band
from mlxdoctor.gate.gating import run_gate
from mlxdoctor.gate.learn import Learned, learn
from mlxdoctor.gate.policy_file import read_policy
from mlxdoctor.gate.policy_text import policy_text
from mlxdoctor.gate_result import ItemStatus
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS

HEALTHY = RUNS / "healthy-ordinary"
CHECKS = {one.name: one for one in discover()}


def written(folder: Path, learned: Learned) -> Path:
    path = folder / "mlxdoctor.toml"
    path.write_text(policy_text(learned))
    return path


def rescaled(folder: Path, factor: float) -> Path:
    """The run with every B multiplied, so that its update is as many times as large."""
    for path in folder.glob("*adapters.safetensors"):
        tensors = load_file(path)
        for name, values in tensors.items():
            if name.endswith("lora_b"):
                tensors[name] = (values * np.float32(factor)).astype(values.dtype)
        save_file(tensors, path)
    return folder


def relogged(folder: Path, factor: float) -> Path:
    """The run with a log whose loss falls `factor` times as far."""
    from mlxdoctor.evidence.training_log import TrainingLog

    log = TrainingLog.read([folder / "train.log"]).main
    start = float(log.series["val_loss"].values[0])
    lines = [
        (int(at), f"Iter {at}: {name} loss {start - factor * (start - value):.3f}")
        for name, key in (("Train", "train_loss"), ("Val", "val_loss"))
        for at, value in zip(log.series[key].iterations, log.series[key].values, strict=True)
    ]
    (folder / "train.log").write_text("".join(f"{line}\n" for _, line in sorted(lines)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["healthy-ordinary"], ["healthy-ordinary", "healthy-noisy-batch1"]]
)
def test_the_runs_that_were_learned_from_pass(tmp_path: Path, names: list[str]) -> None:
    runs = [str(RUNS / name) for name in names]
    learned = learn(runs)
    rules = read_policy(written(tmp_path, learned))
    assert {"adapter-presence", "loss-trend"} <= set(rules.rules.require)
    assert set(rules.rules.thresholds) == {"weight-drift", "loss-trend"}
    result = run_gate(runs, rules).result
    assert [one.status for one in result.items] == [ItemStatus.PASSED] * len(runs)
    assert result.notices == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "code"),
    [(1.0, None), (1.6, None), (0.6, None), (2.3, "large"), (0.4, "negligible")],
)
def test_an_update_outside_the_band_fails_with_and_without_the_base(
    tmp_path: Path, copied: Callable[[str], Path], factor: float, code: str | None
) -> None:
    rules = read_policy(written(tmp_path, learn([str(HEALTHY)])))
    other = rescaled(copied("healthy-ordinary"), factor)
    # Copied away from the base model; then beside it.
    results = [run_gate([str(other)], rules).result]
    shutil.copytree(RUNS.parent / "base", tmp_path / "base")
    results.append(run_gate([str(other)], rules).result)
    kinds = [
        {one.kind for one in result.items[0].report.evidence}  # type: ignore[union-attr]
        for result in results
    ]
    assert ["base model" in one for one in kinds] == [False, True]
    for result in results:
        [item] = result.items
        failing = [one.finding.code for one in item.findings if one.ruling == "fails"]
        assert failing == ([f"weight-drift.{code}"] if code else [])
        assert (item.status is ItemStatus.FAILED) == (code is not None)
    shipped = run_gate([str(other)], type(rules)(tmp_path)).result
    assert shipped.items[0].status is ItemStatus.PASSED


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "fails"), [(1.0, False), (0.7, False), (0.4, True)])
def test_a_loss_that_fell_less_than_the_band_fails(
    tmp_path: Path, copied: Callable[[str], Path], factor: float, fails: bool
) -> None:
    rules = read_policy(written(tmp_path, learn([str(HEALTHY)])))
    other = relogged(copied("healthy-ordinary"), factor)
    [item] = run_gate([str(other)], rules).result.items
    failing = [one.finding.code for one in item.findings if one.ruling == "fails"]
    assert ("loss-trend.never-learned" in failing) is fails


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rate-too-high-garbled", "overfitting", "b-never-trained"])
def test_nothing_is_learned_from_an_unhealthy_run(name: str) -> None:
    with pytest.raises(InputError) as refused:
        learn([str(HEALTHY), str(RUNS / name)])
    assert f"{name}: is no healthy run to learn from (" in str(refused.value)


def test_nor_from_one_that_cannot_be_judged_or_read(
    tmp_path: Path, copied: Callable[[str], Path]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(RUNS.parent / "data" / "geography", data)
    with pytest.raises(InputError, match=r"no healthy run to learn from \(Inconclusive"):
        learn([str(data)])
    cut = copied("healthy-ordinary")
    (cut / "adapters.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="learn from runs that can be read"):
        learn([str(cut)])
    with pytest.raises(InputError, match="name them with a glob"):
        learn([str(RUNS)])


@pytest.mark.slow
def test_a_check_is_required_only_if_it_ran_on_all(copied: Callable[[str], Path]) -> None:
    bare = copied("healthy-ordinary")
    (bare / "generations.jsonl").unlink()
    assert "token-collapse" in learn([str(HEALTHY)]).require
    assert "token-collapse" not in learn([str(HEALTHY), str(bare)]).require


@pytest.mark.slow
def test_the_policy_says_what_it_learned_from_how_many_runs(tmp_path: Path) -> None:
    runs = [str(RUNS / "healthy-ordinary"), str(RUNS / "healthy-noisy-batch1")]
    text = policy_text(learn(runs))
    assert "learned from 2 runs" in text
    assert all(f"#   {one}\n" in text for one in runs)
    assert text.count(" in 2 runs") >= 4
    assert f"widened {WIDENED:g} times" in text
    assert "in 1 run" in policy_text(learn(runs[:1]))
    # The examples at its end are valid once their hashes are gone.
    examples = "\n".join(
        line.removeprefix("# ")
        for line in text[text.index("# [[override]]") :].splitlines()
        if line.startswith("# ") and not line.startswith(("# A ", "# Other"))
    )
    (tmp_path / "mlxdoctor.toml").write_text(examples)
    read = read_policy(tmp_path / "mlxdoctor.toml")
    assert len(read.overrides) == len(read.ignores) == 1


def test_a_band_is_never_laxer_than_what_ships() -> None:
    relative, _, learned = QUANTITIES
    check = CHECKS["weight-drift"]
    shipped = check.limits
    wide = band(relative, check, [shipped.large * 0.9, shipped.negligible * 1.1])
    assert wide is None
    narrow = band(relative, check, [0.5])
    assert narrow is not None
    assert narrow.thresholds == {"large": 1.0, "negligible": 0.25}
    assert band(learned, CHECKS["loss-trend"], [0.06]) is None


def test_a_name_cannot_break_out_of_its_comment(tmp_path: Path) -> None:
    text = policy_text(Learned(('a\nfail-on = "never"',), (), ()))
    assert 'fail-on = "never"' not in [line.strip() for line in text.splitlines()]
    assert read_policy(written(tmp_path, Learned(("a\nx",), (), ()))).rules.require == ()
