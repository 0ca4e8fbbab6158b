import json
from pathlib import Path
from typing import Any

from tests.conftest import HEALTHY, RUNS, Call, Copy, digest

BROKEN = RUNS / "no-supervised-tokens"
STATIC = "--no-generate"


def test_a_good_newest_checkpoint_exits_with_0(call: Call) -> None:
    before = digest(HEALTHY)
    code, out, err = call("bisect", HEALTHY, STATIC)
    assert (code, err) == (0, "")
    path = HEALTHY / "adapters.safetensors"
    first, *rest = out.splitlines()
    assert first == f"Last good checkpoint: {path}, the newest; none of 3 files is broken."
    assert any("0000300_adapters.safetensors" in line and "good" in line for line in rest)
    assert "No model was run: because of --no-generate." in out
    assert digest(HEALTHY) == before


def test_a_broken_one_exits_with_1_and_names_a_file_that_exists(call: Call) -> None:
    code, out, _ = call("bisect", BROKEN, STATIC, "--stdout", "json")
    data: dict[str, Any] = json.loads(out)
    assert code == 1
    assert data["last_good"] == str(BROKEN / "0000040_adapters.safetensors")
    assert Path(data["last_good"]).is_file()
    assert data["first_broken"] == str(BROKEN / "0000080_adapters.safetensors")
    assert (data["newest_is_good"], data["decided"], data["onset"]) == (False, True, 70)
    assert [one["standing"] for one in data["checkpoints"]] == ["good", *["broken"] * 3]
    second = data["checkpoints"][1]
    assert set(second["symptoms"]) == {"non-finite", "blown-up-in-the-log"}
    assert second["size"] is None
    assert second["why"].startswith("27,648 of its values are NaN or infinite")
    assert data["checkpoints"][0]["logged_loss"] > 0
    code, out, _ = call("bisect", BROKEN, STATIC, "--stdout", "markdown")
    assert (code, "| 40 " in out) == (1, True)


def test_nothing_that_decides_exits_with_3(call: Call, copied: Copy) -> None:
    folder = copied("healthy-ordinary")
    for name in ("adapter_config.json", "train.log"):
        (folder / name).unlink()
    code, out, _ = call("bisect", folder, STATIC)
    assert code == 3
    assert out.startswith("Undecided: ")
