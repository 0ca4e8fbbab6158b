"""More ways to make the mistakes that training losses and loops have, and code that comes near."""

from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx import nn

from mlxdoctor.lint.rules.missing_in_mlx import IN_PLACE
from tests.lint.pairs_of_loops import PAIRS as PAIRS_OF_LOOPS
from tests.lint.pairs_of_losses import PAIRS as PAIRS_OF_LOSSES
from tests.lint.test_rules import codes
from tests.lint.tiny import TinyModel, changed, weights
from tests.lint.written_up import AS_WRITTEN_UP

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\nimport mlx.optimizers as optim\n"
LOSS = HEAD + "def loss_fn(model, batch, lengths, mask):\n"
SHIFTED = "    logits, targets = model(batch[:, :-1]), batch[:, 1:]\n"
MEAN = "    return losses.sum() / mx.maximum(mask.sum(), 1)\n"


def masked(mask: str) -> str:
    return (
        LOSS
        + SHIFTED
        + f"    mask = {mask}\n    losses = ce(logits, targets) * mask\n".replace(
            "ce(", "nn.losses.cross_entropy("
        )
        + MEAN
    )


#: The mask of shifted targets, and whether it is off.
MASKS = {
    "mx.arange(targets.shape[1])[None] < lengths[:, None]": True,
    "mx.arange(targets.shape[1])[None] < lengths[:, None] - 1": False,
    "mx.arange(1, targets.shape[1] + 1) <= lengths[:, 1:]": True,
    "mx.arange(1, targets.shape[1] + 1) < lengths[:, 1:]": False,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 1": True,
    "mx.arange(targets.shape[1]) <= lengths[:, None] - 2": False,
    "mx.arange(targets.shape[1]) < lengths[:, None] - 2": True,
    "lengths[:, None] > mx.arange(targets.shape[1])": True,
    "(mx.arange(9) >= 2) & (mx.arange(9) < lengths[:, None])": True,
    "mask[:, :-1]": True,
    "mask[:, 1:]": False,
    "targets != 0": False,
    "mx.arange(9) < target_lengths[:, None]": False,
}


def test_a_mask_made_in_a_helper() -> None:
    helper = "def real(width, lengths):\n    return mx.arange(width)[None] < lengths[:, None]{}\n"
    for less, found in (("", ["mask-off-by-one"]), (" - 1", [])):
        text = masked("real(targets.shape[1], lengths)")
        assert codes(text + helper.format(less)) == found
    # What it is given is a length less already.
    assert codes(masked("real(targets.shape[1], lengths - 1)") + helper.format("")) == []


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    assert codes(masked(mask)) == (["mask-off-by-one"] if MASKS[mask] else [])


PAIRS = PAIRS_OF_LOSSES | PAIRS_OF_LOOPS


@pytest.mark.parametrize(
    ("code", "place"),
    [(code, place) for code, pairs in PAIRS.items() for place in range(len(pairs))],
)
def test_the_mistake_in_other_words_and_code_that_comes_near(code: str, place: int) -> None:
    wrong, right = PAIRS[code][place]
    assert codes(HEAD + wrong) == [code]
    assert codes(HEAD + right) == []


def test_the_names_are_missing_in_mlx_indeed() -> None:
    modules = {"mlx.core": mx, "mlx.nn": nn, "mlx.optimizers": optim, "mlx.nn.utils": nn.utils}
    for name in IN_PLACE:
        module, _, last = name.rpartition(".")
        assert not hasattr(modules[module], last), name


def test_weights_of_an_adapter_are_left_out_in_silence(tmp_path: Path) -> None:
    model, path = TinyModel(), str(tmp_path / "adapters.safetensors")
    before = weights(model)
    mx.save_safetensors(path, {"layers.0.v_proj.lora_b": mx.ones((2, 8))})
    model.load_weights(path, strict=False)
    assert changed(model, before) == set()


@pytest.mark.parametrize("name", AS_WRITTEN_UP)
def test_what_was_written_up_is_found(name: str) -> None:
    code, text = AS_WRITTEN_UP[name]
    head = "" if "from shared" in text else HEAD
    assert code in codes(head + text)
