"""Following a log: when it ends, and what it has to say by then."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.watch import follow
from mlxdoctor.watch.alarms import AlarmKind
from mlxdoctor.watch.follow import Ending, Follower
from mlxdoctor.watch.growing_log import GrowingLog

START = "Starting training..., iters: 40\n"


def lines(losses: list[float], first: int = 10) -> list[str]:
    return [
        f"Iter {first + 10 * i}: Train loss {loss:.3f}, It/sec 2.000, Tokens/sec 100.0\n"
        for i, loss in enumerate(losses)
    ]


class Writer:
    """Does one thing each time that the follower waits."""

    def __init__(self, log: GrowingLog, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)
        self.time = 0.0
        log.wait = self.wait  # type: ignore[method-assign]

    def wait(self, seconds: float) -> None:
        self.time += seconds
        if self.acts:
            self.acts.pop(0)()
        assert self.time < 1_000, "the follower does not end"

    def clock(self) -> float:
        return self.time


def run(
    path: Path, *acts: Callable[[], object], patience: int | None = None, **until: Any
) -> Ending:
    log = GrowingLog(path)
    writer = Writer(log, *acts)
    return Follower(log, patience=patience, clock=writer.clock).run(**until)


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as file:
            file.write(text)

    return act


@pytest.mark.parametrize("begun", [0, 1])
def test_an_old_run_in_the_same_file_raises_nothing(path: Path, begun: int) -> None:
    old, new = lines([2.1, 4.0, 9.0, 20.0]), lines([2.0, 1.9, 1.8, 1.7])
    path.write_text("".join([START, *old, START, *new[:begun]]))
    ending = run(path, append(path, "".join(new[begun:])))
    assert (ending.reason, ending.alarm) == ("the training finished", None)
    assert (ending.reports, ending.step, ending.iterations) == (4, 40, 40)


def test_a_log_that_is_cut_or_rotated_goes_on(path: Path, tmp_path: Path) -> None:
    whole = lines([2.0, 1.9, 1.8, float("nan")])
    path.write_text("".join(whole[:2]))

    def rotate() -> None:
        path.rename(tmp_path / "train.log.1")

    ending = run(path, rotate, append(path, whole[2]), append(path, whole[3]))
    assert ending.alarm.step == 40

    path.write_text("".join(whole[:2]))
    ending = run(path, lambda: path.write_text(whole[2]), append(path, whole[3]))
    assert ending.alarm.step == 40


def test_a_save_from_after_the_onset_is_not_named(path: Path) -> None:
    """The untouched model's validation was the lowest, and all saves came when it was lost."""
    losses = "".join(lines([4.8, 5.2, 6.0, 7.0]))
    files = "a/adapters.safetensors and a/0000040_adapters.safetensors"
    saved = f"Iter 40: Saved adapter weights to {files}.\n"
    path.write_text(f"{START}Iter 1: Val loss 4.150, Val took 0.1s\n{losses}{saved}")
    ending = run(path, at_once=True)
    assert ending.alarm is not None
    assert (ending.best.step, ending.best.save) == (1, None)


def test_a_history_that_is_written_anew_at_each_save(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    losses = [2.148, 2.609, 4.104, 10.965]

    def save(count: int) -> Callable[[], object]:
        rows = [{"step": 5 * (i + 1), "loss": loss} for i, loss in enumerate(losses[:count])]
        text = json.dumps({"global_step": 5 * count, "log_history": rows}, indent=2)
        return lambda: path.write_text(text)

    # What has no line's end is read once nothing more is written.
    quiet = [lambda: None]
    ending = run(path, save(1), *quiet, save(2), *quiet, save(3), *quiet, save(4))
    assert (ending.alarm.verdict, ending.alarm.step, ending.reports) == (AlarmKind.DIVERGING, 15, 3)


def test_a_process_that_is_gone_ends_it_after_its_last_words(path: Path) -> None:
    path.write_text(START + lines([2.0])[0])
    alive = iter([True, True, False])

    def last_words() -> bool:
        still = next(alive)
        if not still:
            append(path, "Iter 20: Train loss nan, It/sec 2.000")()
        return still

    ending = run(path, is_alive=last_words)
    assert ending.alarm.step == 20


def test_polling_is_not_a_busy_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    path.write_text(START)
    log = GrowingLog(path)
    monkeypatch.setattr(log, "wait", waited.append)
    alive = iter([True, True, True, False])
    # As if reading the log took two seconds.
    clock = itertools.count(0, 2).__next__
    Follower(log, clock=clock).run(lambda: next(alive))
    assert waited == [2 * follow.REST] * 3


def validated(losses: list[float], every: int = 100) -> str:
    """Validations, each with a training loss and a save of the same iteration."""
    return "".join(
        f"Iter {every * i}: Val loss {loss:.3f}, Val took 1.0s\n"
        f"Iter {every * i}: Train loss {2.0 - 0.1 * i:.3f}, It/sec 2.000, Tokens/sec 100.0\n"
        f"Iter {every * i}: Saved adapter weights to a/adapters.safetensors and "
        f"a/{every * i:07}_adapters.safetensors.\n"
        for i, loss in enumerate(losses, 1)
    )


def test_a_validation_loss_that_no_longer_improves_is_remarked_on(path: Path) -> None:
    path.write_text(validated([1.9, 1.5, 1.6, 1.7, 1.8, 1.9]))
    remarks: list[str] = []
    follower = Follower(GrowingLog(path), notify=lambda _, text, **__: remarks.append(text))
    ending = follower.run(at_once=True)
    assert ending.alarm is None
    assert remarks == [
        "The validation loss was lowest at iteration 200 (1.5) and has not improved in 4 "
        "validations since; the last is 1.9; the save nearest to it is that of iteration 200."
    ]
    assert (ending.best.step, ending.best.save, ending.best.validations_since) == (200, 200, 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Epoch {at}: train loss {loss:.3f}, val loss {loss:.3f}", "lowest at epoch 2 (1.5)"),
        ("step {at}: train loss {loss:.3f}, val loss {loss:.3f}", "lowest at step 2 (1.5)"),
        ("{{'loss': {loss:.3f}, 'eval_loss': {loss:.3f}}}", "lowest at report 2 (1.5)"),
    ],
)
def test_it_counts_as_the_log_does(path: Path, line: str, said: str) -> None:
    losses = enumerate([1.9, 1.5, 1.6, 1.7, 1.8, 1.9], 1)
    path.write_text("".join(line.format(at=at, loss=loss) + "\n" for at, loss in losses))
    ending = run(path, at_once=True)
    assert said in str(ending.best)
    assert ending.unit == said.split()[2]


@pytest.mark.parametrize(
    ("losses", "alarmed"), [([1.9, 1.5, 1.6, 1.7], True), ([1.9, 1.5, 1.6, 1.4], False)]
)
def test_patience_ends_it(path: Path, losses: list[float], alarmed: bool) -> None:
    path.write_text(validated(losses))
    ending = run(path, at_once=True, patience=2)
    assert (ending.alarm is not None) is alarmed
    if ending.alarm is not None:
        assert ending.alarm.verdict is AlarmKind.NOT_IMPROVING
        assert (ending.alarm.step, ending.alarm.onset) == (400, 200)
        assert "the save nearest to it is that of iteration 200" in ending.alarm.message
