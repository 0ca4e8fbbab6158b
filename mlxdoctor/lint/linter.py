"""Files in, hits out; suppressions are read here and those that suppress nothing reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.safety.errors import InputError

_IGNORE = re.compile(r"#\s*mlxdoctor:\s*ignore\[([\w\s,-]*)\](.*)")
UNUSED, WITHOUT_REASON, UNREADABLE = "unused-ignore", "ignore-without-reason", "unreadable"
_SKIPPED = frozenset({"node_modules", "site-packages", "build", "dist"})


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


def lint(paths: Iterable[Path], select: Sequence[str] = ()) -> list[Hit]:
    """Look at every Python file; folders are searched.

    Args:
        select: codes of rules; all of them where empty.

    Raises:
        InputError: a path does not exist, or a folder has no Python file, or a code no rule.
    """
    chosen = _chosen(select)
    hits: list[Hit] = []
    for path in _files(paths):
        try:
            source = SourceFile.read(path)
        except InputError as error:
            message = f"{error.problem}: the file was not examined"
            hits.append(Hit(UNREADABLE, Severity.WARNING, path, 1, 1, 1, message, ""))
            continue
        hits += lint_source(source, chosen, whole=not select)
    return sorted(hits, key=lambda one: (str(one.path), one.line, one.column, one.code))


def lint_source(source: SourceFile, chosen: Sequence[Rule], *, whole: bool = True) -> list[Hit]:
    """The hits in one file.

    Args:
        whole: whether all rules are asked, so that an unused suppression can be told.
    """
    found = [_hit(source, one, node, text) for one in chosen for node, text in one.find(source)]
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


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise InputError(path, "there is no such file", "check the path")
        if path.is_file():
            yield path
            continue
        found = sorted(
            one
            for one in path.rglob("*.py")
            if one.is_file() and not _is_hidden(one.relative_to(path))
        )
        if not found:
            raise InputError(path, "has no Python file in it", "name files, or a folder with some")
        yield from found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in path.parts)
