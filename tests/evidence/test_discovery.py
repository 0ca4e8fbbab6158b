import json
import shutil
from pathlib import Path

import pytest

from mlxdoctor.evidence.discovery import discover, separate_runs
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES, HEALTHY, RUNS, Copy


def test_a_run_folder_is_sorted_into_kinds() -> None:
    files = discover([RUNS / "healthy-ordinary"])
    assert files.adapter.name == "adapters.safetensors"
    assert files.config.name == "adapter_config.json"
    assert [path.name for path in files.logs] == ["train.log"]
    assert files.generations is not None
    assert len(files.checkpoints) >= 2
    assert files.data is None  # named in the configuration, followed by the run
    # What is known of a fixture is no evidence.
    assert "expected.json" not in {path.name for path in (*files.metrics, *files.unrecognised)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.log", "logs"),
        ("adapter_config.json", "config"),
        ("adapters.safetensors", "adapter"),
        ("generations.jsonl", "generations"),
    ],
)
def test_a_loose_file_is_recognised_whatever_its_name(name: str, kind: str, copied: Copy) -> None:
    path = copied("healthy-ordinary") / name
    odd = path.with_name(f"odd{path.suffix}") if name != "adapter_config.json" else path
    files = discover([path.rename(odd)])
    assert getattr(files, kind) in (odd, (odd,))


def test_of_several_adapters_under_other_names_none_is_chosen(copied: Copy) -> None:
    folder = copied("healthy-ordinary")
    for saved in folder.glob("0*_adapters.safetensors"):
        saved.unlink()
    (folder / "adapters.safetensors").rename(folder / "mine.safetensors")
    assert discover([folder]).adapter == folder / "mine.safetensors"
    (folder / "yours.safetensors").write_bytes((folder / "mine.safetensors").read_bytes())
    files = discover([folder])
    assert files.adapter is None
    (problem,) = files.problems
    assert "2 adapters under names of their own: mine.safetensors, yours" in problem.problem
    named = discover([folder], Options(adapter=folder / "yours.safetensors"))
    assert named.adapter == folder / "yours.safetensors"
    assert named.problems == ()


def test_a_data_folder_and_a_base_model_are_recognised() -> None:
    assert discover([FIXTURES / "data" / "geography"]).data is not None
    assert discover([FIXTURES / "base"]).tuned is not None


def test_an_option_wins_over_what_lies_in_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "other.log"
    log.write_text("Iter 10: Train loss 1.0\n")
    assert discover([RUNS / "healthy-ordinary"], Options(log=(log,))).logs == (log,)


def test_rows_with_a_prompt_and_a_completion_are_data_not_generations(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "Where?", "completion": "There."}) + "\n")
    files = discover([path])
    assert (files.data, files.generations) == (path, None)
    # What was expected stands beside answers that were recorded.
    row = {"prompt": "Where?", "expected": "Here.", "answer": "There."}
    path.write_text(json.dumps(row) + "\n")
    assert discover([path]).generations == path
    assert Generations.read(path).items[0].tuned == "There."


def test_a_model_is_looked_for_where_the_trainer_was_started_and_in_the_local_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    near = resolve("base", [RUNS / "healthy-ordinary"], model=True)
    assert near.resolve() == (FIXTURES / "base").resolve()
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(FIXTURES / "base")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert resolve("someone/tiny", [], model=True) == snapshot
    assert resolve("someone/else", [], model=True) is None
    assert resolve("~nobody-of-that-name/model", [], model=True) is None


@pytest.mark.parametrize(
    ("saved", "configs", "logs", "found"),
    [
        # Projects side by side, and further down.
        ("", "a/config.yaml b/config.yaml", "a/train.log b/train.log", ["work/a", "work/b"]),
        ("x/a/adapters.safetensors x/b/adapters.safetensors", "", "", ["work/x/a", "work/x/b"]),
        # One project, its log and configuration on top; and one that keeps each in a folder.
        ("adapters/adapter_config.json first/adapter_config.json", "config.yaml", "train.log", []),
        ("adapters/adapter_config.json", "configs/lora.yaml", "logs/train.log", []),
        # An adapter that was resumed from, and one log.
        ("adapters/adapter_config.json first/adapter_config.json", "", "logs/train.log", []),
        # Saves of PEFT's trainer, and W&B's folder.
        (
            "checkpoint-5/adapter_config.json checkpoint-9/adapter_config.json",
            "",
            "checkpoint-5/trainer_state.json checkpoint-9/trainer_state.json",
            [],
        ),
        (
            "adapters/a.safetensors",
            "wandb/run/config.yaml",
            "adapters/a.log wandb/run/output.log",
            [],
        ),
        ("", "", "", []),
    ],
)
def test_a_folder_above_several_runs_is_told_from_one_runs(
    saved: str, configs: str, logs: str, found: list[str]
) -> None:
    kinds = ([Path("work", name) for name in names.split()] for names in (saved, configs, logs))
    assert list(map(str, separate_runs(Path("work"), *kinds))) == found


def test_of_adapters_that_were_resumed_from_each_other_the_last_is_the_run_s(
    tmp_path: Path,
) -> None:
    for part, before in (("part1", None), ("part2", "part1"), ("part3", "part2")):
        folder = tmp_path / part
        folder.mkdir()
        shutil.copy(HEALTHY / "adapters.safetensors", folder)
        resumed = f"runs/{before}/adapters.safetensors" if before else None
        (folder / "adapter_config.json").write_text(json.dumps({"resume_adapter_file": resumed}))
    (tmp_path / "train.log").write_text("Iter 10: Train loss 2.0, It/sec 1.0\n")
    files = discover([tmp_path])
    assert files.adapter == tmp_path / "part3" / "adapters.safetensors"
    assert files.config == tmp_path / "part3" / "adapter_config.json"


def test_two_runs_are_not_mixed(tmp_path: Path) -> None:
    first, second = (shutil.copytree(HEALTHY, tmp_path / name) for name in ("first", "second"))
    with pytest.raises(InputError, match="have an adapter each; name one of them"):
        discover([first, second])
    assert discover([first, first / "train.log"]).adapter == first / "adapters.safetensors"


def test_of_rows_under_other_names_the_largest_that_is_not_held_out(tmp_path: Path) -> None:
    row = '{"prompt": "a", "completion": "b"}\n'
    for name, count in (("held.jsonl", 9), ("rows_a.jsonl", 3), ("rows_b.jsonl", 5)):
        (tmp_path / name).write_text(row * count)
    assert discover([tmp_path]).data == tmp_path / "rows_b.jsonl"


def test_what_a_script_calls_otherwise_is_read_beside_what_mlx_lm_calls_so(tmp_path: Path) -> None:
    folder = shutil.copytree(HEALTHY, tmp_path / "run")
    (folder / "dependabot.yml").write_text("updates:\n  - one\nsteps: 3\n")
    (folder / "settings.yaml").write_text("lr: 0.0012\n")
    assert discover([folder]).settings is None
    (folder / "settings.yaml").write_text("num_layers: 4\nlr: 0.0012\n")
    assert discover([folder]).settings == folder / "settings.yaml"
