"""How long `diagnose` takes, side by side with what it is compared to.

    python -m tests.benchmarks.diagnose

Prints a Markdown table. Machines are noisy: compare the figures of one run
with each other, not with those of another day.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.benchmarks.timing import Measurement, measure

# Not from tests.conftest: what this process imports counts as its children's peak memory,
# which they inherit until they start.
FIXTURES = Path(__file__).parents[2] / "fixtures"
LINES = 100_000


def classic_log(path: Path, lines: int) -> Path:
    """A log in mlx-lm's classic format whose loss falls as 1/sqrt(t), with a wobble."""
    rows = (
        f"Iter {10 * n}: Train loss {0.5 + 3 / n**0.5 + 0.05 * (n % 7 - 3):.3f}, "
        f"Learning Rate 1.000e-05, It/sec {3 + n % 5 / 10:.3f}, Tokens/sec {900 + n % 90:.3f}, "
        f"Trained Tokens {n * 3000}, Peak mem 9.707 GB\n"
        for n in range(1, lines + 1)
    )
    path.write_text("Iter 1: Val loss 3.512, Val took 5.265s\n" + "".join(rows))
    return path


def main() -> None:
    """Measure, and print the table."""
    python = [sys.executable, "-m", "mlxdoctor"]
    run = str(FIXTURES / "runs" / "collapse-frequent-token")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        log = str(classic_log(scratch / "long.log", LINES))
        output = ["-o", str(scratch / "reports")]
        click = measure([sys.executable, "-c", "import click"], repeats=15)
        helped = measure([*python, "--help"], repeats=15)
        rows: list[tuple[str, Measurement, str]] = [
            ('python -c "import click"', click, ""),
            ("mlxdoctor --help", helped, f"{helped.seconds / click.seconds:.2f}x click; aim: 2x"),
            (
                "diagnose --no-generate RUN, with figures",
                measure([*python, "diagnose", run, "--no-generate", *output], cwd=FIXTURES),
                "aim: under 1.5 s",
            ),
            (
                f"diagnose a log of {LINES:,} lines, --stdout json",
                measure([*python, "diagnose", log, "--stdout", "json"]),
                "aim: under 1 s",
            ),
            (
                "diagnose RUN, answers generated in batches",
                measure([*python, "diagnose", run, *output], repeats=2, cwd=FIXTURES),
                "aim: under 10 s",
            ),
        ]
    print("| command | median | peak memory | |\n|---|---:|---:|---|")
    for name, measured, note in rows:
        print(f"| `{name}` | {measured.seconds:.3f} s | {measured.peak_mib:.0f} MiB | {note} |")


if __name__ == "__main__":
    main()
