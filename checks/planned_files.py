"""Whether the files are there that a planned run needs, and where it would write.

What it finds. Before a run: a test split that is asked for and missing; an adapter folder that
holds an older adapter, which the run would replace. A file to resume from is looked at by
`resume`.

Why it matters. mlx-lm stops before it trains where the rows for a test are missing. Checkpoints
of two runs in one folder are taken for one run's by people and by loaders.

How it is measured. By the names in the folders.

When it is wrong. On another machine than the one that will train, where files lie elsewhere.

What to do. Name another `adapter_path`; add the split.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.finding import Measurement, Sign, Symptom, some_of


@check(
    codes={
        "no-test-split": Symptom.error(
            "a test is asked for, and there are no rows for it",
            says="The configuration asks for a test, and the data have no rows for one: mlx-lm "
            "stops before it trains.",
            expected="a test.jsonl with rows",
            fix="add test.jsonl, or leave `test` out",
        ),
        "older-adapter": Symptom.warning(
            "the folder for the adapter holds one already",
            says="{folder} holds {older} already: the run would write over it, and leave what it "
            "does not write.",
            expected="a folder of its own",
            fix="name another adapter_path",
        ),
    },
)
def planned_files(planned: PlannedRun, *, dataset: Dataset | None) -> Iterator[Sign]:
    """Look for what the run would read and write."""
    config = planned.config
    if config.values.get("test") is True and dataset is not None and dataset.path.is_dir():
        split = dataset.splits.get("test")
        if split is None or not split.rows:
            yield Sign("no-test-split", {"rows": 0}, where="test.jsonl")
    if planned.older and config.resume_adapter_file is None:
        measured: dict[str, Measurement] = {
            "folder": planned.adapter_path,
            "files": len(planned.older),
            "older": some_of(planned.older),
        }
        yield Sign("older-adapter", measured, where="adapter_path")
