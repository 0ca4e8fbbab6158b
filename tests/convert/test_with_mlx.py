"""mlx-lm loads what was converted, and computes with it what it computed before."""

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.convert.conversion import convert
from tests.convert.given import KINDS, WRITTEN, bits, logits, saved_by_mlx, stated, write_files

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_what_mlx_lm_saved_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    source = saved_by_mlx(tmp_path / "a", *KINDS[kind])
    peft = write_files(tmp_path / "peft", convert(source).files)
    back = write_files(tmp_path / "mlx", convert(peft).files)
    assert bits(back / "adapters.safetensors") == bits(source / "adapters.safetensors")
    # Other keys and layers in the configuration than before, and the same answers.
    assert np.array_equal(logits(back), before := logits(source))
    assert np.abs(before - logits(None)).max() > 0.1


def test_what_peft_wrote_gives_the_logits_that_peft_computed(tmp_path: Path) -> None:
    files = convert(WRITTEN).files
    assert stated(files)["num_layers"] == 4
    recorded = np.load(WRITTEN / "logits.npz")
    ours = logits(write_files(tmp_path / "mlx", files), recorded["tokens"])
    assert np.abs(ours - recorded["logits"]).max() < 1e-4
    assert np.abs(logits(None, recorded["tokens"]) - recorded["logits"]).max() > 1
