"""When the watch raises the alarm: every threshold, with its source and what it was measured on."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxdoctor.check import limit

_TUNED = "0 of 64 sound runs of the two tuning bases; held out: reports/watch.md"


@dataclass(frozen=True)
class BettingLimits:
    """A test by betting: one-sided, against the level that a series had reached."""

    level: int = limit(5, unit="reports", source="whose median is the level before a bet begins")
    history: int = limit(10, unit="reports", source="whose changes tell the noise")
    window: int = limit(6, unit="reports", source="a bet is over after so many")
    noise_floor: float = limit(
        0.05, unit="log units", source="report to report in the ward's steadiest noisy runs"
    )
    noise_of_one_step: float = limit(
        0.15,
        unit="log units for a report of one step; of k steps 1/sqrt(k) of it",
        source="0.12 to 0.14 in most sound runs that report each step; batches of 2 to 4 rows",
    )
    stake: float = limit(
        1.5,
        unit="the factor is exp(stake z - stake^2/2)",
        source="an e-value for any innovation z whose tail is no heavier than a normal one",
    )
    cap: float = limit(
        100.0,
        unit="largest factor of one report",
        source="a spike, however high, is one report and no alarm",
    )
    first_starts: int = limit(4, unit="bets", source="the first updates are where most runs break")
    first_wealth: float = limit(
        1_000.0, unit="times the stake", source="designed: 1 in 1,000 a bet", false_alarms=_TUNED
    )
    wealth: float = limit(
        50_000.0,
        unit="times the stake",
        source="designed: 1 in 50,000 a bet; three reports at the cap, and not two",
        false_alarms=_TUNED,
    )
    least_ratio: float = limit(
        1.2,
        unit="mean of the bet's reports over the level before",
        source="less is no reason to stop a training, however certain",
        false_alarms=_TUNED,
    )
    last_ratio: float = limit(
        1.1, unit="the last report over the level before", source="a spike of two reports is over"
    )
    least_change: float = limit(
        0.1, unit="nats above the level before", source="small losses double and halve"
    )
    least_steps: int = limit(
        5, unit="iterations that a bet lasts", source="neighbouring batches may be hard alike"
    )
    least_seconds: float = limit(0.0, unit="seconds that a bet lasts", source="reports count")
    harmed_ratio: float = limit(
        1.1,
        unit="validation loss over the untouched model's",
        source="sound runs of the ward stay below 0.93",
        false_alarms=_TUNED,
    )

    def false_alarm_rate(self, reports: int) -> float:
        """The designed bound on P(an alarm in a sound run of so many reports).

        Each bet is a non-negative supermartingale that begins at 1, so that by Ville's
        inequality it ever reaches W with a probability of at most 1/W; bets add up.
        """
        first = min(reports, self.first_starts)
        return first / self.first_wealth + (reports - first) / self.wealth


@dataclass(frozen=True)
class SpeedLimits(BettingLimits):
    """The same test on the speed, downwards."""

    level: int = limit(15, unit="reports", source="speed changes with the length of the rows")
    history: int = limit(15, unit="reports", source="same")
    window: int = limit(256, unit="reports", source="reports may come every second")
    noise_floor: float = limit(
        0.4, unit="log units", source="rows of mixed length, and a machine that does other work"
    )
    noise_of_one_step: float = limit(0.4, unit="log units for a report of one step", source="same")
    cap: float = limit(
        10.0, unit="largest factor of one report", source="five reports at least: for good"
    )
    first_starts: int = limit(0, unit="bets", source="the first steps compile")
    least_ratio: float = limit(
        3.0,
        unit="speed before over speed now, at every report of the bet",
        source="two jobs that share a machine halve each other's speed",
        false_alarms=_TUNED,
    )
    least_change: float = limit(0.0, unit="log units", source="the ratio says it")
    least_seconds: float = limit(
        120.0,
        unit="seconds at the lower speed",
        source="another program's busy minute; a run of the ward was slowed 3.6 times for 3 s",
    )
    least_history: int = limit(5, unit="reports", source="a level needs some")
    near_memory: float = limit(
        0.75,
        unit="peak memory over the machine's",
        source="Metal's limit for a working set",
    )


@dataclass(frozen=True)
class FactLimits:
    """Facts that need no statistics, and how often they must be repeated."""

    zero_reports: int = limit(
        2, unit="reports in a row of exactly 0", source="one batch may have no supervised token"
    )
    zero_after: float = limit(
        0.05, unit="nats before the zeros", source="below, a zero may be a rounded small loss"
    )
    bad_norms: int = limit(
        3,
        unit="gradient norms in a row that are non-finite, or 0",
        source="loss scaling of float16 skips one or two steps at its start",
    )
    zero_rates: int = limit(
        3, unit="learning rates of exactly 0 in a row", source="a warm-up has one at most"
    )
    zero_rate_steps: int = limit(
        20, unit="iterations", source="micro-batches before a warm-up's first update"
    )
    same_start_wealth: float = limit(
        10_000.0,
        unit="1 / probability that validation losses repeat the first one by chance",
        source="designed: 1 in 10,000 runs; three equal losses of three decimals",
        false_alarms=_TUNED,
    )
    same_wealth: float = limit(
        1e8,
        unit="1 / probability that training losses repeat by chance",
        source="designed: 1 in 100,000,000 reports, each of which may begin such a series",
        false_alarms=_TUNED,
    )
    same_cap: float = limit(
        1_000.0, unit="largest factor of one repeat", source="losses in half precision"
    )
    moving_noise: float = limit(
        0.03,
        unit="log units that a loss moves from report to report in a training that learns",
        source="0.08 from the first validation to the second in the ward's slowest sound run",
    )
    coarsest: float = limit(
        0.002, unit="last digit over the loss", source="a small loss has too few digits to repeat"
    )
    moves: int = limit(7, unit="changes", source="whose median is how far losses move by chance")
    exact_decimals: int = limit(
        8, unit="decimals", source="printed by trainers that do not round: one repeat is no chance"
    )


@dataclass(frozen=True)
class Limits:
    """All thresholds of the watch: on the loss, on the speed, and of what needs no test."""

    losses: BettingLimits = field(default_factory=BettingLimits)
    speeds: SpeedLimits = field(default_factory=SpeedLimits)
    facts: FactLimits = field(default_factory=FactLimits)
