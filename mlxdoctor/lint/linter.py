"""Files in, hits out; suppressions are read here and those that suppress nothing reported."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlxdoctor.evidence.source import open_file, read_text, require_file
from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

_IGNORE = re.compile(r"#\s*mlxdoctor:\s*ignore\[([\w\s,-]*)\](.*)")
UNUSED, WITHOUT_REASON, UNREADABLE = "unused-ignore", "ignore-without-reason", "unreadable"
_SKIPPED = frozenset({"node_modules", "site-packages", "build", "dist"})
#: What a file that uses MLX has in it: its name, or `from .backend import mx`.
_MLX = re.compile(rb"mlx|\bimport\b[^\n]*\bmx\b")
#: From so many files on, starting processes pays; each is handed so many at a time.
MANY_FILES = 400
FILES_AT_ONCE = 50


@dataclass(frozen=True)
class Hit:
    """One place in a file.

    Attributes:
        code: the rule's, or one of the linter's own.
        line, column: where it begins, from 1.
        end_line: where it ends.
        message: one sentence.
        text: the line itself.
    """

    code: str
    severity: Severity
    path: Path
    line: int
    column: int
    end_line: int
    message: str
    text: str


def lint(paths: Iterable[Path], select: Sequence[str] = (), jobs: int = 1) -> list[Hit]:
    """Look at every Python file; folders are searched, for files that speak of MLX.

    Args:
        select: codes of rules; all of them where empty.
        jobs: the most processes to use; more than one where there are many files.

    Raises:
        InputError: a path does not exist, or a folder has no Python file, or a code no rule.
    """
    _chosen(select)
    files = list(_files(paths))
    look = partial(_lint_files, select=tuple(select))
    if jobs > 1 and len(files) >= MANY_FILES:
        hits = _in_processes(look, files, jobs)
    else:
        hits = look(files)
    return sorted(hits, key=lambda one: (str(one.path), one.line, one.column, one.code))


def _in_processes(
    look: Callable[[list[tuple[Path, bool]]], list[Hit]],
    files: list[tuple[Path, bool]],
    jobs: int,
) -> list[Hit]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    parts = [files[one : one + FILES_AT_ONCE] for one in range(0, len(files), FILES_AT_ONCE)]
    # Syntax trees have no circles: looking for some among millions of nodes takes a tenth.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=gc.disable) as pool:
        return [hit for found in pool.map(look, parts) for hit in found]


def _lint_files(files: list[tuple[Path, bool]], select: tuple[str, ...]) -> list[Hit]:
    chosen = _chosen(select)
    return [hit for path, named in files for hit in _lint_file(path, named, chosen, not select)]


def _lint_file(path: Path, named: bool, chosen: Sequence[Rule], whole: bool) -> list[Hit]:
    try:
        # An empty file is a good one here: packages have them.
        text = _text(path, named) if require_file(path) else ""
        # What nobody named and no rule can hit is not even parsed.
        if not named and "mlxdoctor" not in text and not any(one.may_hit(text) for one in chosen):
            return []
        return lint_source(SourceFile.parse(text, path), chosen, whole=whole)
    except InputError as error:
        message = f"{error.problem}: the file was not examined"
        return [Hit(UNREADABLE, Severity.WARNING, path, 1, 1, 1, message, "")]


def _text(path: Path, named: bool) -> str:
    """A file's text; empty for one that nobody named and that has nothing of MLX."""
    if not named:
        with open_file(path) as file:
            if not _MLX.search(file.read(current().source_bytes)):
                return ""
    return read_text(path, "source_bytes")[0]


def lint_source(source: SourceFile, chosen: Sequence[Rule], *, whole: bool = True) -> list[Hit]:
    """The hits in one file; one that does not import MLX has none.

    Args:
        whole: whether all rules are asked, so that an unused suppression can be told.
    """
    asked = [one for one in chosen if one.may_hit(source.text)] if source.uses_mlx else []
    found = [_hit(source, one, node, text) for one in asked for node, text in one.find(source)]
    ignores = dict(_ignores(source))
    used: set[tuple[int, str]] = set()
    kept = []
    for hit in dict.fromkeys(found):
        places = [at for at in _lines_of(source, hit) if hit.code in ignores.get(at, {})]
        if places:
            used.add((places[0], hit.code))
        else:
            kept.append(hit)
    return kept + list(_about_ignores(source, ignores, used, whole))


def _lines_of(source: SourceFile, hit: Hit) -> list[int]:
    """The lines of a hit, and the one above it where that is nothing but a comment."""
    above = hit.line - 1
    is_comment = above >= 1 and source.lines[above - 1].lstrip().startswith("#")
    return list(range(above if is_comment else hit.line, hit.end_line + 1))


def _about_ignores(
    source: SourceFile,
    ignores: dict[int, dict[str, str]],
    used: set[tuple[int, str]],
    whole: bool,
) -> Iterator[Hit]:
    for line, codes in ignores.items():
        for code, reason in codes.items():
            text = source.lines[line - 1].strip()
            place = (source.path, line, 1, line)
            if whole and (line, code) not in used:
                message = f"nothing is found here that ignore[{code}] could suppress"
                yield Hit(UNUSED, Severity.WARNING, *place, message, text)
            elif not reason:
                message = f"ignore[{code}] gives no reason"
                yield Hit(WITHOUT_REASON, Severity.WARNING, *place, message, text)


def _hit(source: SourceFile, one: Rule, node: object, message: str) -> Hit:
    line = getattr(node, "lineno", 1)
    end = getattr(node, "end_lineno", None) or line
    column = getattr(node, "col_offset", 0) + 1
    text = source.lines[line - 1].strip() if line <= len(source.lines) else ""
    return Hit(one.code, one.severity, source.path, line, column, end, message, text)


def _ignores(source: SourceFile) -> Iterator[tuple[int, dict[str, str]]]:
    if "mlxdoctor" not in source.text:
        return
    for line, comment in source.comments.items():
        match = _IGNORE.match(comment)
        if match:
            codes = [code.strip() for code in match[1].split(",") if code.strip()]
            yield line, dict.fromkeys(codes, match[2].strip())


def _chosen(select: Sequence[str]) -> tuple[Rule, ...]:
    if not select:
        return rules()
    by_code = {one.code: one for one in rules()}
    for code in select:
        if code not in by_code:
            from difflib import get_close_matches

            close = get_close_matches(code, by_code, n=1)
            raise InputError(
                None,
                f"{code!r} is no rule",
                f"did you mean {close[0]!r}?" if close else "`mlxdoctor lint --rules` lists them",
            )
    return tuple(by_code[code] for code in select)


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """The files, and whether each was named."""
    for path in paths:
        if not path.exists():
            raise InputError(path, "there is no such file", "check the path")
        if path.is_file():
            yield path, True
            continue
        found = sorted(_below(path))
        if not found:
            raise InputError(path, "has no Python file in it", "name files, or a folder with some")
        yield from ((one, False) for one in found)


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not _is_hidden(one)]
        for name in names:
            path = Path(root, name)
            if name.endswith(".py") and not _is_hidden(name) and path.is_file():
                yield path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED
