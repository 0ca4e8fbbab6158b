"""Before the hours are spent: would this run fail, does it fit, how long does it take?

A configuration, its data and its base model are looked at by the checks of `diagnose`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxdoctor.api import RunReport
    from mlxdoctor.evidence.kind import Progress


def preflight(
    config: Any,
    *,
    options: Mapping[str, Any] | None = None,
    steps: bool = False,
    seconds: float = 120.0,
    elsewhere: bool = False,
    memory: int | None = None,
    progress: "Progress | None" = None,
    **changes: Any,
) -> "RunReport":
    """Look at a run before it is made.

    Args:
        config: the configuration's file; or its keys and values as a mapping, or as the
            attributes of an object, such as the arguments that `mlx_lm.lora` is run with; None
            for `options` alone.
        options: mlx-lm's keys that go before those of the file.
        steps: make steps with the model too: which rate, how long.
        seconds: that these may take, about.
        elsewhere: the run will be made on another machine: this one's memory and graphics card
            are not looked at.
        memory: bytes of the machine that will train; by default those of this one.
        progress: called with what is being done, a count done, and a total.
        changes: fields of `mlxdoctor.evidence.options.Options`: `base`, `data`, `with_text`.

    Returns:
        The report; its `planned.readiness` is the answer.

    Raises:
        InputError: the configuration can't be read or is none.
    """
    from mlxdoctor.evidence.options import Options
    from mlxdoctor.preflight.examine import examine

    how = Options(**{**changes, "allow_model": steps, "replay": steps, "budget": seconds})
    return examine(config, options or {}, how, progress, elsewhere=elsewhere, memory=memory)
