"""Files written whole or not at all: a kill at any moment leaves the old content or the new."""

from pathlib import Path
from secrets import token_hex


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, in place of one that may be there.

    It is written beside and renamed. A process that is killed may leave what it had
    written under a name that begins with a dot.

    Raises:
        OSError: it can't be written; nothing is left behind, and the old file is untouched.
    """
    # Not mkstemp's, which nobody else may read: results are made to be passed on.
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
