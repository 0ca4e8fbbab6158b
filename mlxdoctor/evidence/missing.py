"""How a reader says that a run left no such evidence."""

from __future__ import annotations


class Missing(Exception):  # noqa: N818 - an answer, not an error
    """Raised by a reader when the run left no such evidence; the reason is a clause."""


class NotThere(Missing):
    """Raised where nothing is lacking either: this run has no such thing, or nobody asked."""
