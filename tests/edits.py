"""Files of a run that is there, changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Tensors = dict[str, Any]


def change_json(path: Path, **changes: Any) -> None:
    """Replace keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Write the tensors of a .safetensors file anew."""
    from safetensors.numpy import load_file, save_file

    changed = change(load_file(path))
    save_file({name: np.ascontiguousarray(one) for name, one in changed.items()}, path)
