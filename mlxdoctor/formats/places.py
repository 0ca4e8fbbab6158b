"""Where an artifact lies in the checkout: what code hosts call its path."""

from __future__ import annotations

import os
from pathlib import Path

#: Variables in which GitHub and GitLab name the folder of the checkout.
CHECKOUT_VARIABLES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


def checkout() -> Path:
    """The folder of the checkout that a CI job names and runs in, else the current folder."""
    here = Path.cwd()
    for name in CHECKOUT_VARIABLES:
        if root := os.environ.get(name):
            resolved = Path(root).resolve()
            if here.is_relative_to(resolved):
                return resolved
    return here


def in_checkout(path: str | Path) -> str | None:
    """`path` from the checkout's root, with slashes; None where it is not there, links followed."""
    root = checkout()
    try:
        resolved = Path(path).resolve()
        if resolved.is_relative_to(root) and resolved.exists():
            return resolved.relative_to(root).as_posix()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return None
