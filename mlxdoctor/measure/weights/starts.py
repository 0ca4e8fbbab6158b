"""Whether two saves of an adapter began as the same one."""

from __future__ import annotations

from math import isfinite, nan
from statistics import median

import numpy as np

from mlxdoctor.evidence.adapter import Adapter


def start_likeness(first: Adapter, second: Adapter) -> float:
    """How alike the factors A of two adapters are: the median cosine over their modules.

    LoRA draws A at random and training moves it little, so that A tells runs apart as a finger
    print does: the cosine of two saves of a run is near 1, that of two runs with other seeds
    near 0.

    Returns:
        NaN where no module is in both, or a factor is zero or not finite.
    """
    others = {one.name: one for one in second.modules}
    found = []
    for module in first.modules:
        other = others.get(module.name)
        if other is None or other.a.shape != module.a.shape:
            continue
        one, two = (part.a.load().astype(np.float64).ravel() for part in (module, other))
        norms = float(np.linalg.norm(one) * np.linalg.norm(two))
        cosine = float(one @ two) / norms if norms else nan
        if not isfinite(cosine):
            return nan
        found.append(cosine)
    return median(found) if found else nan
