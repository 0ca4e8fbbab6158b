"""Readings of a log: what a trainer may have computed in place of mlx-lm's loss.

Every function of these modules that `@reading` decorates is one, and is found here. The check
`replay` has a code for each: importing them loads no MLX.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlxdoctor.tables import modules_of
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.settings import Settings

#: (settings, parts) -> those of the run as this reading has it; None where it is no other run.
Apply = Callable[[Settings, Parts], tuple[Settings, Parts] | None]


@dataclass(frozen=True)
class Reading:
    """One way to compute the losses of a run.

    Attributes:
        code: of the finding which says that the log agrees with it; several may share one.
        clause: what the losses then are: "of predicting the token after the next".
        apply: changes settings or parts.
        fix: what to do about it; empty for a sound one.
        sound: whether a trainer that does so is sound, and only not mlx-lm.
        in_training: whether validations are the same under it, so that only training shows it.
    """

    code: str
    clause: str
    apply: Apply
    fix: str = ""
    sound: bool = False
    in_training: bool = False


def reading(
    *, fix: str = "", sound: bool = False, in_training: bool = False
) -> Callable[[Apply], Reading]:
    """Makes a reading of a function: its name is the code, its docstring the clause."""

    def made(apply: Apply) -> Reading:
        clause = " ".join((apply.__doc__ or "").split()).rstrip(".")
        code = apply.__name__.replace("_", "-")
        return Reading(code, clause[:1].lower() + clause[1:], apply, fix, sound, in_training)

    return made


def losses() -> Any:
    """The module `masked_loss`, which imports MLX, for a reading that is applied."""
    from mlxdoctor.twin import masked_loss

    return masked_loss


@cache
def readings() -> tuple[Reading, ...]:
    """All readings: sound ones first, and those that only training shows before others."""
    found: list[Reading] = []
    for module in modules_of("mlxdoctor.twin.readings"):
        for value in vars(module).values():
            group = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
            found += [each for each in group if isinstance(each, Reading)]
    return tuple(sorted(found, key=lambda each: (not each.sound, not each.in_training)))
