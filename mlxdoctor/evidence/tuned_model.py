"""Full weights after training: a fused model, or an "adapter" that is a whole model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.quantized import Stored, stored
from mlxdoctor.evidence.safetensors_file import merged_tensors, model_files, read_safetensors
from mlxdoctor.evidence.source import Source, read_json_object
from mlxdoctor.evidence.tensor import TensorRef

#: Where a LoRA layer keeps the layer it wraps: those weights carry the base model's
#: name with this part inserted.
_WRAPPED = (".linear.", ".embedding.", ".base_layer.")


@dataclass(frozen=True)
class TunedModel:
    """Weights that a run left behind, by the base model's names, without LoRA factors.

    Those `from_adapter` were in the adapter's file, where no base weight belongs.
    """

    kind: ClassVar[str] = "tuned model"

    path: Path
    tensors: Mapping[str, TensorRef]
    from_adapter: bool

    @classmethod
    def find(cls, run: RunView) -> "TunedModel":
        if run.files.tuned is not None:
            return cls.read(run.files.tuned)
        tuned = cls.of(run.need(Adapter))
        if tuned is None:
            raise NotThere("no fused model and no full fine-tune was found")
        return tuned

    @classmethod
    def read(cls, path: Path) -> "TunedModel":
        """Read the headers of a model folder."""
        files = map(read_safetensors, model_files(path))
        return cls(path, merged_tensors(files), from_adapter=False)

    @classmethod
    def of(cls, adapter: Adapter) -> "TunedModel | None":
        """The full weights in an adapter's file, or None where it holds only factors."""
        tensors = {base_name(tensor.name): tensor for tensor in adapter.others}
        return cls(adapter.path, tensors, from_adapter=True) if tensors else None

    @cached_property
    def stored(self) -> Mapping[str, Stored]:
        """As `BaseModel.stored`; the folder's `config.json` describes the quantised matrices."""
        if self.from_adapter or not any(name.endswith(".scales") for name in self.tensors):
            return self.tensors
        config, _ = read_json_object(self.path / "config.json")
        return stored(self.tensors, config)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The weight files; their values are compared, so they are not hashed as well."""
        files = dict.fromkeys(tensor.path for tensor in self.tensors.values())
        return tuple(Source(file, None, "not hashed: weights") for file in files)


def base_name(name: str) -> str:
    """The base model's name for a tensor that was saved from inside a LoRA layer."""
    name = name.removeprefix("base_model.model.")
    for part in _WRAPPED:
        head, found, tail = name.rpartition(part)
        if found and "." not in tail:
            return f"{head}.{tail}"
    return name
