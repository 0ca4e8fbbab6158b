"""Files written whole or not at all: a kill at any moment leaves the old content or the new."""

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, in place of one that may be there.

    It is written beside and renamed. A process that is killed may leave what it had
    written under a name that begins with a dot.

    Raises:
        OSError: it can't be written; nothing is left behind, and the old file is untouched.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        # mkstemp lets nobody else read; results are made to be passed on.
        os.umask(mask := os.umask(0))
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
