"""A few runs of the ward are made and diagnosed from nothing: the slice that CI can afford."""

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.lab.evidence import read_outcomes
from fixtures.lab.ward.runs import SLICE
from mlxdoctor.diagnosis import judge
from mlxdoctor.finding import Status
from tests.conftest import ROOT

#: The run -> the cause that was put into it; None where it is sound.
TRUTH = {
    "llama-ordinary-s0": None,
    "llama-batch-2-masked-s21": None,
    "llama-rate-too-high-2-s50": "learning-rate-too-high",
    "llama-rate-too-low-2-s50": "learning-rate-too-low",
    "llama-labels-identity-0-s50": "labels-misaligned",
    "llama-gradients-blocked-1-s50": "gradients-blocked",
    "llama-b-zeroed-1-s50": "adapter-not-trained",
    "llama-keys-renamed-1-s50": "adapter-not-loaded",
}


def ward(step: str, cache: Path, *options: str) -> None:
    command = [sys.executable, "-m", "fixtures.lab.ward", step, "--slice", "--cache", str(cache)]
    result = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def said_of(cache: Path, kind: str) -> dict[str, tuple[str, str | None]]:
    found = {}
    for name in SLICE:
        outcomes, _ = read_outcomes(cache / "outcomes" / f"{name}.{kind}.json.gz")
        assert [one.check for one in outcomes if one.status is Status.CRASHED] == []
        said = judge(outcomes)
        named = said.diagnosis
        found[name] = (said.verdict.value, named[0].cause.id if named else None)
    return found


@pytest.mark.long
@pytest.mark.slow(100)
@pytest.mark.skipif(
    sys.platform == "linux"
    and not list(Path("/usr/lib").glob("*/openblas-pthread/libopenblas.so.0")),
    reason="without OpenBLAS (libopenblas0-pthread) this takes minutes",
)
def test_the_slice_is_made_and_every_run_of_it_is_told(tmp_path: Path) -> None:
    assert set(SLICE) == set(TRUTH)
    # A loss that never moves is not judged before a hundred iterations.
    ward("build", tmp_path, "--only", "rate-too-low", "--short", "110")
    ward("build", tmp_path, "--short", "60")
    ward("diagnose", tmp_path)
    failed = {name: ("unhealthy", cause) for name, cause in TRUTH.items() if cause is not None}
    sound = dict.fromkeys(TRUTH.keys() - failed.keys(), ("healthy", None))
    # Read and not run, a sound run is inconclusive: what only its models show is open.
    unseen = dict.fromkeys(sound, ("inconclusive", None))
    assert said_of(tmp_path, "static") == failed | unseen
    assert said_of(tmp_path, "models") == failed | sound
    for kind in ("log", "adapter"):
        assert said_of(tmp_path, kind).keys() == TRUTH.keys()
