"""The generated pages: docs/checks.md, causes.md and upstream.md, and the README's first screen."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from fixtures.lab.upstream import page as upstream
from mlxdoctor.causes import Cause, load_causes
from mlxdoctor.check import Check, discover

README = Path("README.md")
CHECKS = Path("docs/checks.md")
CAUSES = Path("docs/causes.md")
#: The run whose first screen the README shows.
SHOWN = Path("fixtures/runs/collapse-frequent-token")
#: What a check has to read, in a reader's words.
READS = {"instant": "files", "forward": "what a running model answers"}


def pages() -> dict[Path, bytes]:
    """Every generated page, by its path below the repository."""
    return {
        README: readme(README.read_text("utf-8")).encode(),
        CHECKS: checks().encode(),
        CAUSES: causes().encode(),
        upstream.PAGE: upstream.page().encode(),
    }


def readme(text: str) -> str:
    """The README with what the command prints now."""
    screen = f"\n```\n$ mlxdoctor diagnose {SHOWN} --no-generate\n{first_screen()}```\n"
    start, end = "<!-- first-screen -->", "<!-- end of first-screen -->"
    before, after = text.index(start) + len(start), text.index(end)
    return f"{text[:before]}{screen}{text[after:]}"


def first_screen() -> str:
    """What `mlxdoctor diagnose` really prints of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mlxdoctor", "diagnose", str(SHOWN), "--no-generate"]
        command += ["-o", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 1:
            raise RuntimeError(f"diagnose exited with {done.returncode}: {done.stderr}")
        return done.stdout.replace(folder, "reports")


def checks() -> str:
    """The page that lists what can be found."""
    head = (
        "# What can be found\n\nEvery check, and the codes of its findings "
        "(`check.code`). `mlxdoctor explain CHECK` says how each is measured, when it is wrong, "
        "and what to do.\nMade by `python -m reports.build`.\n"
    )
    return "\n".join([head, *(_check(one) for one in discover())])


def _check(one: Check) -> str:
    meanings = {code.split(".", 1)[1]: symptom.meaning for code, symptom in one.symptoms.items()}
    rows = [f"| `{name}` | {meaning} |" for name, meaning in meanings.items()]
    title = f"## `{one.name}`\n\n{one.title}. Reads {READS[one.cost]}.\n"
    return "\n".join([title, "| code | meaning |", "|---|---|", *rows, ""])


def causes() -> str:
    """The page that lists what can be the matter, and what speaks for it."""
    head = (
        "# What can be the matter\n\nEvery root cause, from `mlxdoctor/causes.toml`: what it "
        "does, what to do, and how much (in\nlog-odds) each finding speaks for it or against it. "
        "Made by `python -m reports.build`.\n"
    )
    return "\n".join([head, *(_cause(one) for one in load_causes().causes.values())])


def _cause(one: Cause) -> str:
    weights = sorted(one.weights.items(), key=lambda item: -item[1])
    speaking = [f"`{code}` {weight:+g}" for code, weight in weights]
    explanation = " ".join(one.explanation.split())
    for code, words in one.called.items():
        # What else it may be called, and where.
        explanation += f" Where `{code}` was found it is called *{words['title'].lower()}*."
    return (
        f"## `{one.id}`\n\n**{one.title}**: {one.summary}.\n\n{explanation}\n\n"
        f"*What to do.* {' '.join(one.remedy.split())}\n\n"
        f"*Prior* {one.prior:+g}. {', '.join(speaking)}.\n"
    )
