"""What a picture of a report is; each module of this package that has a `PICTURE` adds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxdoctor.finding import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """How one kind of exhibit is shown.

    Attributes:
        shows: the kind of exhibit.
        title: what the picture is called where it can't be seen.
        caption: what an exhibit shows, in words with its figures.
        draw: draws one.
    """

    shows: type[Exhibit]
    title: str
    caption: Callable[[Any], str]
    draw: Callable[[Any], Figure]
