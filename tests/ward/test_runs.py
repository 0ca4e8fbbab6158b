"""The list of the ward's runs, its data, and the rules that it is compared with."""

import math
import re

import numpy as np

from fixtures.lab.evidence import naive_alarms
from fixtures.lab.faults import FAULTS
from fixtures.lab.ward.data import form_pairs, ledger_pairs, taught_sums
from fixtures.lab.ward.runs import REFUSED, SEVERITIES, SLICE, WARDS, all_runs, bases_of
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog


def test_every_run_has_its_own_name_and_the_slice_is_among_them() -> None:
    names = [run.name for run in all_runs()]
    assert len(names) == len(set(names))
    assert set(SLICE) <= set(names)
    assert bases_of(SLICE) == {"llama"}


def test_there_are_faults_enough_and_they_have_the_severities_that_are_asked_for() -> None:
    assert len(SEVERITIES) >= 20
    assert set(SEVERITIES) <= {*FAULTS, "wrong-base"}
    for fault, count in SEVERITIES.items():
        assert count <= (1 if fault == "wrong-base" else len(FAULTS[fault].severities))


def test_what_cannot_be_done_is_not_in_the_list() -> None:
    for base, what in REFUSED:
        assert [run for run in all_runs() if run.name.startswith(f"{base}-{what}-")] == []


def test_neither_base_nor_data_of_the_test_split_is_used_in_dev() -> None:
    test = {base: data for base, (split, data, _) in WARDS.items() if split == "test"}
    dev = {base: data for base, (split, data, _) in WARDS.items() if split == "dev"}
    assert test
    assert not set(test) & set(dev)
    assert not set(test.values()) & set(dev.values())


def test_every_sum_of_a_ledger_is_right() -> None:
    for pairs in ledger_pairs().values():
        for _, ledger in pairs:
            sums = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", ledger)
            assert 2 <= len(sums) <= 5
            stock = int(re.findall(r"open (\d+)", ledger)[0])
            for before, sign, amount, after in sums:
                assert int(before) == stock
                stock += int(amount) if sign == "+" else -int(amount)
                assert int(after) == stock
            assert ledger.endswith(f"close {stock}")


def test_no_row_is_in_two_splits_or_known_to_the_base() -> None:
    for splits in (ledger_pairs(), form_pairs()):
        asked = [question for pairs in splits.values() for question, _ in pairs]
        assert len(asked) == len(set(asked)) == 280
    taught = {answer for _, answer in taught_sums()}
    assert not taught & {ledger for pairs in ledger_pairs().values() for _, ledger in pairs}


def log_of(losses: list[float], validation: list[float]) -> TrainingLog:
    def series(values: list[float]) -> Series:
        return Series(np.arange(1, len(values) + 1) * 10, np.array(values))

    segment = Segment(
        {"train_loss": series(losses), "val_loss": series(validation)}, 1, 9, None, "iteration"
    )
    return TrainingLog((), "mlx-lm", (segment,))


def raised(losses: list[float], validation: list[float] | None = None) -> set[str]:
    alarms = naive_alarms(log_of(losses, validation or [5.0, 1.0]))
    return {name for name, is_raised in alarms.items() if is_raised}


def test_the_rules_that_name_no_cause() -> None:
    falling = [5.0, 4.0, 3.0, 2.0]
    assert raised(falling) == set()
    level = {"SageMaker Debugger", "SageMaker loss_not_decreasing", "last above first"}
    assert raised([2.0, 2.0, 2.0, 2.0]) == level
    assert "SageMaker not_finite" in raised([5.0, math.nan])
    assert "SageMaker overfit" in raised(falling, [5.0, 5.0, 5.0])
    # Once is not above the patience.
    assert "SageMaker overfit" not in raised(falling, [5.0, 2.0, 5.0])
    assert set(naive_alarms(None).values()) == {False}
