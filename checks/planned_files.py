"""Whether the files are there that a planned run needs, and where it would write.

What it finds. Before a run: a file to resume from that is not there, or that fits nothing of the
base model; a test split that is asked for and missing; an adapter folder that holds an older
adapter, which the run would replace.

Why it matters. mlx-lm loads a file to resume from with `strict=False`: what does not fit is
dropped in silence, and the run starts anew. Checkpoints of two runs in one folder are taken for
one run's by people and by loaders.

How it is measured. By the names in the folders, and by the names in the header of the file to
resume from, held against the base model's modules.

When it is wrong. On another machine than the one that will train, where files lie elsewhere.

What to do. Name another `adapter_path`; correct `resume_adapter_file`; add the split.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.finding import Sign, Symptom, some_of


@check(
    codes={
        "no-resume-file": Symptom.error(
            "the file to resume from is not there",
            expected="an adapter file that an earlier run saved",
            fix="correct resume_adapter_file",
        ),
        "resume-fits-nothing": Symptom.error(
            "the file to resume from has no tensor for the base model",
            expected="an adapter of this base model",
            fix="name an adapter that was trained on this base model",
        ),
        "no-test-split": Symptom.error(
            "a test is asked for, and there are no rows for it",
            expected="a test.jsonl with rows",
            fix="add test.jsonl, or leave `test` out",
        ),
        "older-adapter": Symptom.warning(
            "the folder for the adapter holds one already",
            expected="a folder of its own",
            fix="name another adapter_path",
        ),
    },
)
def planned_files(
    planned: PlannedRun,
    *,
    base: BaseModel | None,
    dataset: Dataset | None,
    resumed: ResumedAdapter | None,
) -> Iterator[Sign]:
    """Look for what the run would read and write."""
    config = planned.config
    named = config.resume_adapter_file
    if named and planned.resumes_from is None:
        yield Sign(
            "no-resume-file",
            f"{named}, which the run is to resume from, is not there.",
            {"file": named},
            where="resume_adapter_file",
        )
    if resumed is not None and base is not None:
        yield from _fits(resumed, base)
    if config.values.get("test") is True and dataset is not None and dataset.path.is_dir():
        split = dataset.splits.get("test")
        if split is None or not split.rows:
            yield Sign(
                "no-test-split",
                "The configuration asks for a test, and the data have no rows for one: mlx-lm "
                "stops before it trains.",
                {"rows": 0},
                where="test.jsonl",
            )
    if planned.older and named is None:
        yield Sign(
            "older-adapter",
            f"{planned.adapter_path} holds {some_of(planned.older)} already: the run would write "
            "over it, and leave what it does not write.",
            {"files": len(planned.older), "folder": planned.adapter_path},
            where="adapter_path",
        )


def _fits(resumed: ResumedAdapter, base: BaseModel) -> Iterator[Sign]:
    modules = [one.name for one in resumed.adapter.modules]
    lost = [one for one in modules if base.module_for(one) is None]
    if modules and len(lost) == len(modules):
        yield Sign(
            "resume-fits-nothing",
            f"None of the {len(modules)} modules in {resumed.adapter.path.name} is one of the base "
            f"model's, such as {lost[0]}: mlx-lm would drop them all and start anew.",
            {"modules": len(modules)},
            where="resume_adapter_file",
        )
