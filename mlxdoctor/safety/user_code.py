"""Functions of the user's own, named on the command line. Nothing in a run is ever loaded."""

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.silenced import aside
from mlxdoctor.safety.stages import Kind, Stage
from mlxdoctor.safety.user_failure import UserCodeError, failure_of, kept_running

#: Where code was loaded from in this process.
_loaded: set[str] = set()


def load_named(name: str, what: str) -> tuple[Callable[..., Any], Path]:
    """The function that the user named as `FILE.py:FUNCTION`.

    This runs the user's code: call it for a name given on the command line only, never for
    one found in a run. It may import what lies beside its file or in the current folder,
    when it is loaded and when it is called.

    Args:
        what: what is to be named, such as "a scoring function".

    Returns:
        The function, and its file.

    Raises:
        InputError: the name has no colon, there is no such file or function, or importing it
            fails.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise InputError(None, f"{name!r} does not name {what}", "write FILE.py:FUNCTION")
    path = Path(place)
    folders = path.resolve().parent, Path.cwd()
    _loaded.add(place)
    with _running(f"importing {place}", folders):
        try:
            module = _from_file(path)
        except InputError:
            raise
        except Exception as error:
            problem = f"fails when imported ({failure_of(error).sentence})"
            raise UserCodeError(path, problem, "run it by hand") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(place, f"has no function {attribute!r}", "check the name")

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _running(name, folders):
            return function(*args, **kwargs)

    return called, path


def end_children() -> None:
    """End what the user's code left running; if any was loaded."""
    if not _loaded:
        return
    import psutil

    with suppress(psutil.Error):
        children = psutil.Process().children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        # A kill is done when the system comes round to it.
        psutil.wait_procs(children, timeout=1)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(path, "there is no such file", "check the path")
    specification = importlib.util.spec_from_file_location(f"mlxdoctor_user_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise InputError(path, "cannot be imported", "name a Python file")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses and pickles in the user's file look their module up by name.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@contextmanager
def _running(name: str, folders: Iterable[Path]) -> Iterator[None]:
    """As when the code is run in its place, which is named; no bytecode is left there."""
    added, wrote = [str(folder) for folder in folders], sys.dont_write_bytecode
    sys.path[:0] = added
    sys.dont_write_bytecode = True
    try:
        with Stage(name, Kind.CODE, limit="code_seconds"), aside(), kept_running(name):
            yield
    finally:
        sys.dont_write_bytecode = wrote
        # The code may have added more, which stays.
        for folder in added:
            sys.path.remove(folder)
