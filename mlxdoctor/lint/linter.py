"""Files in, hits out; suppressions are read here, and those that suppress nothing are reported."""

import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.source import open_file, read_text, require_file
from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.lint.source import SourceFile
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current
from mlxdoctor.safety.user_failure import failure_of

_IGNORE = re.compile(r"#\s*mlxdoctor:\s*ignore\[([\w\s,-]*)\](.*)")
_IMPORTS_MLX = re.compile(r"^\s*(?:from\s+mlx|import\s+(?:[\w. ,]+,\s*)?mlx)", re.M)
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


def uses_mlx(text: str) -> bool:
    """Whether a source imports MLX or a package made for it."""
    return _IMPORTS_MLX.search(text) is not None


def lint(paths: Iterable[Path]) -> list[Hit]:
    """Look at every Python file; folders are searched for files that use MLX.

    Raises:
        InputError: a path does not exist, or a folder has no Python file.
    """
    hits = [hit for path, named in _files(paths) for hit in _lint_file(path, named)]
    return sorted(hits, key=lambda hit: (str(hit.path), hit.line, hit.column, hit.code))


def _lint_file(path: Path, named: bool) -> list[Hit]:
    try:
        if not named:
            with open_file(path) as file:
                content = file.read(current().source_bytes)
            # Files that never speak of MLX are left alone, even where they are broken.
            if b"mlx" not in content and b"mx" not in content:
                return []
        if path.suffix == ".ipynb":
            script = "make a script of it with `jupyter nbconvert --to script`"
            raise InputError(path, "is a notebook", script)
        # Packages have empty files.
        text = read_text(path, "source_bytes")[0] if require_file(path) else ""
        if not named and not uses_mlx(text):
            return []
        return lint_source(SourceFile.parse(text, path))
    except InputError as error:
        message = f"{error.problem}: the file was not examined"
        message += f" ({error.remedy})" if error.remedy else ""
    except RecursionError:
        message = "is nested too deeply: the file was not examined"
    return [Hit(UNREADABLE, Severity.WARNING, path, 1, 1, 1, message, "")]


def lint_source(source: SourceFile) -> list[Hit]:
    """The hits in one file; one that does not use MLX has none."""
    asked = rules() if uses_mlx(source.text) else ()
    hits = [hit for rule in asked for hit in _hits(source, rule)]
    ignores = _ignores(source)
    used: set[tuple[int, str]] = set()
    kept = []
    for hit in dict.fromkeys(hits):
        # A comment that is all of the line above counts, too.
        is_comment = hit.line > 1 and source.lines[hit.line - 2].lstrip().startswith("#")
        places = range(hit.line - is_comment, hit.end_line + 1)
        ignored = [(line, hit.code) for line in places if (line, hit.code) in ignores]
        used.update(ignored[:1])
        kept += [] if ignored else [hit]
    return kept + list(_about_ignores(source, ignores, used))


def _hits(source: SourceFile, rule: Rule) -> Iterator[Hit]:
    """The hits of one rule; if it raises, those before that, and one that says so."""
    try:
        for node, message in rule.find(source):
            line = getattr(node, "lineno", 1)
            end = getattr(node, "end_lineno", None) or line
            column = getattr(node, "col_offset", 0) + 1
            text = source.lines[line - 1].strip() if line <= len(source.lines) else ""
            yield Hit(rule.code, rule.severity, source.path, line, column, end, message, text)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # one rule's bug must not hide the others' hits
        message = f"the rule {rule.code} failed on this file ({failure_of(error).sentence})"
        yield Hit(UNREADABLE, Severity.WARNING, source.path, 1, 1, 1, message, "")


def _ignores(source: SourceFile) -> Mapping[tuple[int, str], str]:
    """A line and a code that it suppresses -> the reason."""
    if "mlxdoctor:" not in source.text:
        return {}
    ignores: dict[tuple[int, str], str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        match = _IGNORE.match(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            codes = filter(None, map(str.strip, match[1].split(",")))
            ignores |= {(token.start[0], code): match[2].strip() for code in codes}
    return ignores


def _about_ignores(
    source: SourceFile, ignores: Mapping[tuple[int, str], str], used: set[tuple[int, str]]
) -> Iterator[Hit]:
    """The suppressions that suppress nothing or give no reason."""
    for (line, code), reason in ignores.items():
        kind, message = WITHOUT_REASON, f"ignore[{code}] gives no reason"
        if is_unused := (line, code) not in used:
            kind, message = UNUSED, f"nothing is found here that ignore[{code}] could suppress"
        if is_unused or not reason:
            text = source.lines[line - 1].strip()
            yield Hit(kind, Severity.WARNING, source.path, line, 1, line, message, text)


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """The files, and whether each was named."""
    for path in paths:
        if not path.exists():
            raise InputError(path, "there is no such file", "check the path")
        if path.is_file():
            yield path, True
            continue
        files: list[Path] = []
        for root, folders, names in os.walk(path):
            folders[:] = [n for n in folders if not n.startswith(".") and n not in _SKIPPED]
            scripts = [n for n in names if n.endswith(".py") and not n.startswith(".")]
            files += [file for name in scripts if (file := Path(root, name)).is_file()]
        if not files:
            raise InputError(path, "has no Python file in it", "name files, or a folder with some")
        yield from ((file, False) for file in sorted(files))
