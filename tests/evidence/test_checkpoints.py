import hashlib
from pathlib import Path

from mlxdoctor.evidence.checkpoints import CheckpointHistory
from tests.weight_files import lora, save

FACTORS = lora({"model.layers.0.q": (4, 4)})


def test_order_is_by_number_and_other_files_are_ignored(tmp_path: Path) -> None:
    for name in ("0000900_adapters.safetensors", "1000_adapters.safetensors", "x.safetensors"):
        save(tmp_path / name, FACTORS)
    history = CheckpointHistory.read(tmp_path)
    assert [save.iteration for save in history.checkpoints] == [900, 1000]
    content = (tmp_path / "0000900_adapters.safetensors").read_bytes()
    assert history.sources[0].sha256 == hashlib.sha256(content).hexdigest()
