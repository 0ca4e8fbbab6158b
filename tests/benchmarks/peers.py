"""Peer tools from PyPI, each in an environment of its own."""

from __future__ import annotations

import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peers:
    """Environments below a folder; those that are there are used again."""

    folder: Path

    def command(self, name: str) -> str:
        """The path of the peer's command, installed on first use.

        Raises:
            subprocess.CalledProcessError: it cannot be installed.
        """
        home = self.folder / name
        command = home / "bin" / name
        if not command.exists():
            venv.create(home, with_pip=True)
            python = home / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "-q", name], check=True)
        return str(command)

    def has(self, name: str) -> bool:
        """Whether it is installed already."""
        return (self.folder / name / "bin" / name).exists()

    def version(self, name: str) -> str:
        """The installed version, as pip tells it."""
        python = self.folder / name / "bin" / "python"
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        return subprocess.run(
            [python, "-c", code, name], check=True, capture_output=True, text=True
        ).stdout.strip()
