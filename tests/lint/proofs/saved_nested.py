"""Nothing is written."""

from pathlib import Path
from types import ModuleType

from tests.lint.tiny import TinyModel, raised

BAD, GOOD = ("RuntimeError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    path = Path("w.safetensors")
    path.unlink(missing_ok=True)
    return raised(lambda: example.save(TinyModel(), str(path))), path.is_file()
