"""Copies of an adapter or of rows, in an experiment's own folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from mlxdoctor.evidence.dataset import Row
from mlxdoctor.evidence.run_files import RunFiles

ADAPTER_FILE = "adapters.safetensors"


def copied(
    files: RunFiles, adapter: Path, folder: Path, names: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Copy an adapter and its configuration, as mlx-lm loads them.

    Args:
        adapter: a .safetensors file.
        folder: made where it does not exist.
        names: tensor -> its name in the copy, where that is another.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if files.config is not None:
        shutil.copyfile(files.config, folder / "adapter_config.json")
    if names:
        from safetensors.numpy import load_file, save_file

        tensors = {names.get(key, key): value for key, value in load_file(adapter).items()}
        save_file(tensors, folder / ADAPTER_FILE)
    else:
        shutil.copyfile(adapter, folder / ADAPTER_FILE)
    return folder


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows of data, one JSON document a line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, "utf-8")
