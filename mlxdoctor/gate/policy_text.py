"""What was learned from healthy runs, as a policy that people read and change."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mlxdoctor.formats import escape
from mlxdoctor.gate.bands import WIDENED, Band
from mlxdoctor.gate.learn import Learned

#: Runs named in the policy's head.
NAMED = 20

_REST = """\
# Other rules for some paths, as in a .gitignore; what is not named here stays as above.
#
# [[override]]
# paths = ["adapters/experimental/**"]
# fail-on = "never"

# A finding that is known and accepted: a reason is needed, paths and expires may be left out.
#
# [[ignore]]
# code = "learning-rate.no-bias-correction"
# paths = ["adapters/old/**"]
# reason = "trained before the switch to AdamW"
# expires = 2030-01-31
"""


def policy_text(learned: Learned) -> str:
    """The policy in TOML, for `mlxdoctor.toml`, with comments that say where it comes from."""
    count = _runs(len(learned.runs))
    named = [f"#   {escape.terminal(one)}" for one in learned.runs[:NAMED]]
    if len(learned.runs) > NAMED:
        named.append(f"#   and {len(learned.runs) - NAMED} more")
    codes = sorted({code for one in learned.bands for code in one.codes})
    parts = [
        "\n".join(
            [
                f"# A gate's policy, learned from {count} that learned, with nothing against it:",
                *named,
            ]
        ),
        "# Checks that must have run, or an item is inconclusive: those that tell whether\n"
        f"# training worked, and ran on {'it' if len(learned.runs) == 1 else 'all of them'}.\n"
        f"require = {_list(learned.require)}",
        "# Whether models must have been run (--generate): files can't tell what it answers.\n"
        "require-generate = false",
        '# The least severity that fails an item: "info", "warning", "error" or "never".\n'
        'fail-on = "error"',
        '# What becomes of a run that is suspect: "pass", listed and counted, or "fail".\n'
        'suspect = "pass"',
    ]
    if codes:
        parts.append(
            "# What fails an item whatever its severity: being outside the bands below.\n"
            f"fail = {_list(codes)}"
        )
    parts.append(
        "# Known findings, by `mlxdoctor gate --write-baseline`, that do not fail an item.\n"
        '# baseline = "mlxdoctor-baseline.json"'
    )
    if learned.bands:
        parts.append(
            f"# Bands: what was seen in {count}, widened {WIDENED:g} times either way. Runs of one "
            "recipe\n# that differ by their seed stay well within; another rank, rate or set of "
            "modules may not.\n# Learn again, from more runs, when the recipe changes."
        )
        parts += _tables(learned.bands)
    else:
        parts.append(
            f"# No band: {count} showed nothing by which the shipped thresholds could be tightened."
        )
    return "\n\n".join(parts) + "\n\n" + _REST


def said(learned: Learned) -> list[str]:
    """What was learned, a sentence each, for the terminal."""
    lines = [f"checks that must run: {len(learned.require)}"]
    lines += [f"{one.quantity.label}: {_seen(one)}, so {_demanded(one)}" for one in learned.bands]
    return lines


def _tables(bands: Sequence[Band]) -> list[str]:
    by_check: dict[str, list[Band]] = {}
    for one in bands:
        by_check.setdefault(one.quantity.check, []).append(one)
    tables = []
    for check, own in by_check.items():
        lines = [f"[thresholds.{check}]"]
        for one in own:
            lines.append(f"# {one.quantity.label}: {_seen(one)}")
            lines += [f"{name} = {value!r}" for name, value in one.thresholds.items()]
        tables.append("\n".join(lines))
    return tables


def _seen(one: Band) -> str:
    span = f"{one.low:.3g}" if one.low == one.high else f"{one.low:.3g} to {one.high:.3g}"
    return f"{span} in {_runs(one.runs)}"


def _demanded(one: Band) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in one.thresholds.items())


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _list(names: Sequence[str]) -> str:
    # JSON's strings are TOML's, and a check's name has no character that either escapes.
    lines = "".join(f"    {json.dumps(one)},\n" for one in names)
    return f"[\n{lines}]" if names else "[]"
