"""The gallery: diagnose every fixture run and write its report here, or compare.

    python -m reports.build            # write reports/<run>/ and reports/README.md
    python -m reports.build --check    # compare with what is committed; exit 1 where it differs

Numbers are compared within a relative tolerance, pictures by their existence:
arithmetic differs in the last digits between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from fixtures.lab.harness import older_pages
from mlxdoctor.api import diagnose
from mlxdoctor.formats import escape, summary
from mlxdoctor.formats.figures import FIGURES, path_of
from mlxdoctor.formats.format import files_of
from mlxdoctor.report import Report
from mlxdoctor.verdict import Verdict
from reports.docs import pages

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("fixtures/runs")
REPORTS = Path("reports")
TOLERANCE = 1e-3

INTRODUCTION = """# Reports

What `mlxdoctor diagnose` says about every run in [fixtures/runs](../fixtures/runs), whose causes
are known because they were put there. Made by `python -m reports.build`; CI compares. The models
are not run for these pages, so that a sound run is inconclusive: it learned, nothing speaks against
it, and what only its models can show is open. With them, all sound runs here are healthy.

What slips through the gate, of broken adapters and sound ones: [bypasses.md](bypasses.md).
What every command does with files that explode, lie or never end is in [hostile.md](hostile.md).

"""
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\w)")


def build() -> dict[Path, bytes]:
    """Every file of the gallery, by its path below the repository."""
    files: dict[Path, bytes] = {}
    rows = []
    for run in sorted(path for path in RUNS.iterdir() if (path / "expected.json").is_file()):
        print(f"diagnosing {run}", file=sys.stderr)
        # Without running models: their last digits, and so their answers, differ between
        # machines. The answers that were recorded with each run are judged instead, and no
        # sound run is healthy: that takes its models.
        report = diagnose([run], allow_model=False)
        for name, content in files_of(report, "markdown").items():
            files[REPORTS / run.name / name] = content
        rows.append(index_row(run, report))
    files[REPORTS / "README.md"] = index(rows).encode()
    return files | pages()


def index_row(run: Path, report: Report) -> dict[str, Any]:
    """What was expected of a run and what was said."""
    expected = json.loads((run / "expected.json").read_text())
    root = report.root
    found = root.cause.id if root else None
    is_sound = expected["verdict"] == Verdict.HEALTHY
    wanted = Verdict.INCONCLUSIVE if is_sound else expected["verdict"]
    matches = report.verdict == wanted and expected["cause"] == found
    return {
        "run": run.name,
        "expected": expected["cause"] or expected["verdict"],
        "verdict": report.verdict.value,
        "found": found or "–",
        "score": summary.number(root.score) if root else "–",
        "match": "yes" if matches else "**no**",
        "is_match": matches,
    }


def index(rows: list[dict[str, Any]]) -> str:
    """The page that lists the reports."""
    matching = sum(row["is_match"] for row in rows)
    lines = [
        f"{INTRODUCTION}{matching} of {len(rows)} agree with what was put there.\n",
        "| run | expected | verdict | first cause | score | agrees |",
        "|---|---|---|---|---:|---|",
    ]
    for row in rows:
        name = escape.markdown(row["run"])
        cells = [f"[{name}]({row['run']}/report.md)", row["expected"], row["verdict"]]
        cells += [row["found"], row["score"], row["match"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def differences(files: dict[Path, bytes]) -> list[str]:
    """Where the committed gallery differs from `files`, one sentence each."""
    found = []
    for path, content in files.items():
        if not path.is_file():
            found.append(f"{path} is missing")
        elif path.suffix != ".png":
            found.extend(text_differences(path, path.read_text("utf-8"), content.decode()))
    committed = {path for path in REPORTS.glob("*/**/*") if path.suffix in {".md", ".png"}}
    found.extend(f"{path} is left over" for path in sorted(committed - set(files)))
    return found


def text_differences(path: Path, old: str, new: str) -> list[str]:
    """The first line that differs by more than the last digits of its numbers."""
    before, after = comparable(old), comparable(new)
    for number, (one, other) in enumerate(zip(before, after, strict=False), start=1):
        if not same(one, other):
            return [f"{path}, line {number}:\n  committed: {one}\n  now:       {other}"]
    return [] if len(before) == len(after) else [f"{path} has another number of lines"]


def comparable(text: str) -> list[str]:
    """The lines of a report without those that name installed versions."""
    return ["" if line.startswith("Versions:") else line for line in text.splitlines()]


def same(one: str, other: str) -> bool:
    """Whether two lines are the same up to the last digits of their numbers."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(math.isclose(value(a), value(b), rel_tol=TOLERANCE) for a, b in pairs)


def value(text: str) -> float:
    """A number as a report writes it."""
    return float(text.replace(",", "").rstrip("."))


def write(files: dict[Path, bytes]) -> None:
    """Write the gallery and remove the pictures that no report shows any more."""
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for folder in {path.parent for path in files if path.name == "report.md"}:
        for picture in map(path_of, FIGURES):
            if folder / picture not in files:
                (folder / picture).unlink(missing_ok=True)


def main() -> int:
    """Write or compare; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    with contextlib.chdir(ROOT):
        files = build()
        if not arguments.check:
            write(files)
            return 0
        found = differences(files)
    for difference in found:
        print(difference)
    # No failure: measuring again takes hours. GitHub shows such a line as a warning.
    for path, code in older_pages():
        page = path.relative_to(ROOT).as_posix()
        print(f"::warning file={page}::{page} is older than its code ({code})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
