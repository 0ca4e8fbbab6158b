"""Start, logs, lint, answers, and the README's tests."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fixtures.lab.harness import FIXTURES, ROOT
from fixtures.lab.lint_corpus.corpus import packages
from fixtures.trainers import write_twins
from tests.benchmarks.setup import Line, Measurement, Setup, at_most, measure

LINES = 100_000
PROMPTS, TOKENS = 32, 48
#: Files a second, and seconds a file.
LEAST, LONGEST = 150, 1.0
ALONE = (
    "import sys; from pathlib import Path; from mlxdoctor.lint.linter import lint; "
    "lint([Path(one) for one in sys.argv[1:]])"
)


def startup(scratch: Path, setup: Setup) -> Iterator[Line]:
    """How long the commands take to begin with, and a diagnosis of a whole run."""
    turns = setup.turns(15)
    click = measure([setup.python, "-c", "import click"], repeats=turns)
    yield Line('`python -c "import click"`', click)
    helped = measure([*setup.ours, "--help"], repeats=turns)
    yield at_most("`mlxdoctor --help`", helped, click, "click", 1.2)
    run = [*setup.ours, "diagnose", str(FIXTURES / "runs" / "collapse-frequent-token")]
    output = ["-o", str(scratch / "reports")]
    found = measure([*run, "--no-generate", *output], repeats=setup.turns(5), cwd=FIXTURES)
    yield Line("`diagnose --no-generate` of a run, with figures", found)
    if not setup.smallest:
        found = measure([*run, *output], repeats=2, cwd=FIXTURES)
        yield Line("`diagnose` of it, the answers of both models included", found)


def _loss(number: int) -> float:
    return 0.5 + 3 / number**0.5 + 0.05 * (number % 7 - 3)


def classic_log(path: Path, lines: int) -> Path:
    """A log in mlx-lm's classic format whose loss falls as 1/sqrt(t), with a wobble."""
    rows = (
        f"Iter {10 * n}: Train loss {_loss(n):.3f}, "
        f"Learning Rate 1.000e-05, It/sec {3 + n % 5 / 10:.3f}, Tokens/sec {900 + n % 90:.3f}, "
        f"Trained Tokens {n * 3000}, Peak mem 9.707 GB\n"
        for n in range(1, lines + 1)
    )
    path.write_text("Iter 1: Val loss 3.512, Val took 5.265s\n" + "".join(rows))
    return path


def json_log(path: Path, lines: int) -> Path:
    """The same rows as one JSON object a line."""
    rows = (
        {
            "step": 10 * n,
            "train_loss": _loss(n),
            "learning_rate": 1e-5,
            "tokens_per_second": 900.0 + n % 90,
        }
        for n in range(1, lines + 1)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def logs(scratch: Path, setup: Setup) -> Iterator[Line]:
    """`diagnose` on long logs, against runmedic and trainproof on the same files."""
    count = 200 if setup.smallest else LINES
    for file, what, peer, command, most in (
        (
            classic_log(scratch / "long.log", count),
            f"an mlx-lm log of {count:,} lines",
            *("runmedic", "diagnose", 0.09),
        ),
        (
            json_log(scratch / "long.jsonl", count),
            f"{count:,} rows of JSONL",
            *("trainproof", "epoch", 0.65),
        ),
    ):
        # A log alone is inconclusive: exit code 3, and the verdict on the screen.
        ours = [*setup.ours, "diagnose", str(file), "--stdout", "json"]
        found = measure(ours, repeats=setup.turns(5), says='"verdict"')
        title = f"`diagnose --stdout json`, {what}"
        if (program := setup.peer(peer)) is None:
            yield Line(title, found)
            continue
        theirs = measure([program, command, str(file)], repeats=setup.turns(3))
        yield Line(f"{peer}, {what}", theirs)
        yield at_most(title, found, theirs, peer, most)


def lint(scratch: Path, setup: Setup) -> Iterator[Line]:
    """How many files a second `lint` examines: the Python files of packages that use MLX."""
    files = sorted(write_twins(scratch).rglob("*.py")) if setup.smallest else _corpus()
    count, names = len(files), [str(path) for path in files]
    programs = {"`lint`": [sys.executable, "-c", ALONE, *names]}
    if (pyflakes := setup.peer("pyflakes")) is not None:
        programs = {"pyflakes": [pyflakes, *names], **programs}
    for what, command in programs.items():
        found = measure(command, repeats=setup.turns(3))
        rate = count / found.seconds
        line = Line(f"{what}, {count:,} files", found, f"{rate:.0f} files a second")
        if what == "`lint`":
            aim = f"at least {LEAST:g} a second"
            line = Line(line.what, found, line.result, aim, rate >= LEAST)
        yield line
    longest, path = _slowest(files)
    size = len(path.read_bytes().splitlines())
    yield Line(
        f"the file that takes longest, {size:,} lines",
        result=f"{longest:.2f} s",
        aim=f"at most {LONGEST:g} s",
        met=longest <= LONGEST,
    )


def _corpus() -> list[Path]:
    """The Python files of the packages of the lint corpus that may be looked at."""
    chosen = [one for one in packages() if one.half == "dev"]
    for one in chosen:
        one.fetch()
    return [file for one in chosen for file in one.files()]


def _slowest(files: list[Path]) -> tuple[float, Path]:
    """The file that takes longest, and how long; of two turns the shorter."""
    from mlxdoctor.lint.linter import lint as linted

    def seconds(path: Path) -> float:
        begun = time.perf_counter()
        linted([path])
        return time.perf_counter() - begun

    return max((min(seconds(path), seconds(path)), path) for path in files)


def generation(scratch: Path, setup: Setup) -> Iterator[Line]:
    """Answers generated in batches, against one prompt at a time."""
    del scratch
    from mlx_lm import load

    from mlxdoctor.evidence.dataset import Dataset
    from mlxdoctor.evidence.tokenizer import Tokenizer
    from mlxdoctor.models.forward import answer
    from mlxdoctor.models.prompts import prompts_for

    count, tokens = (2, 4) if setup.smallest else (PROMPTS, TOKENS)
    model, _ = load(str(FIXTURES / "base"))  # type: ignore[misc]
    tokenizer = Tokenizer.read(FIXTURES / "base")
    data = Dataset.read(FIXTURES / "data" / "geography")
    prompts = prompts_for(data, tokenizer, held_out=16, trained=16)[:count]
    ends = tokenizer.eos_token_ids

    def batched() -> None:
        answer(model, prompts, ends, tokens)

    def single() -> None:
        for one in prompts:
            answer(model, [one], ends, tokens)

    together, alone = (_best(work, max(setup.turns(3), 1)) for work in (batched, single))
    yield Line(f"answers to {len(prompts)} prompts, one at a time", Measurement(alone, 0))
    ratio = alone / together
    aim = "at least 6x"
    found = Measurement(together, 0)
    yield Line("the same in one batch", found, f"{ratio:.1f}x the speed", aim, ratio >= 6)


def _best(work: Callable[[], None], turns: int) -> float:
    """The shortest time of several turns, after one that is not counted."""
    work()
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def tests(scratch: Path, setup: Setup) -> Iterator[Line]:
    """The tests that the README names, on all cores."""
    del scratch
    if setup.smallest:
        return
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-m", "not slow"]
    begun = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    last = done.stdout.strip().rpartition("\n")[2]
    met = seconds <= 120 and done.returncode == 0
    yield Line(f"`pytest -n auto -m 'not slow'`: {last}", None, f"{seconds:.0f} s", "120 s", met)
