"""Files written whole or not at all: a kill at any moment leaves the old content or the new."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlxdoctor.safety.errors import InputError

_ANOTHER = "name another folder (on the command line with --output)"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file beside the old one and rename it; a kill may leave it under a dotted name.

    Raises:
        OSError: it can't be written; nothing is left behind, and the old file is untouched.
    """
    # Not mkstemp's, which nobody else may read: results are made to be passed on.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def refuse_inside(folder: Path, inspected: Iterable[Path]) -> None:
    """Refuse to write below a folder that is inspected: evidence stays as it was found.

    Raises:
        InputError: `folder` is, or lies in, one of the inspected folders.
    """
    target = folder.resolve()
    for path in inspected:
        root = path.resolve()
        if root.is_dir() and target.is_relative_to(root):
            problem = f"lies inside the inspected folder {path}, in which nothing is written"
            raise InputError(folder, problem, _ANOTHER)


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write `files` (relative name -> content) below `folder`, each at once or not at all.

    Files that are there are replaced.

    Raises:
        InputError: the folder can't be made or a file can't be written.
    """
    written = []
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            written.append(path)
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})", _ANOTHER) from None
    return written
