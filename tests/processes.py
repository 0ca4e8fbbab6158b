"""Python in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def python(
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run Python, and catch what it prints; a variable that is None is taken away."""
    known: dict[str, str | None] = {**os.environ, **(environment or {})}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={key: value for key, value in known.items() if value is not None},
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=check,
        **{"capture_output": True, **options},
    )
