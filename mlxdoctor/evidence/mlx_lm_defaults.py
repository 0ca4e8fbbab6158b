"""What `mlx_lm.lora` uses for a key that is not stated: mlx-lm 0.32.2, `CONFIG_DEFAULTS`.

The one copy in here, so that configuration, rows, trainer and advice agree on it; a test
compares it with the mlx-lm that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Under `lora_parameters`; the whole is used where it is not stated, and nothing of it elsewhere.
MLX_LM_LORA_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"rank": 8, "dropout": 0.0, "scale": 20.0}
)
MLX_LM_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "fine_tune_type": "lora",
        "optimizer": "adam",
        "seed": 0,
        "num_layers": 16,
        "batch_size": 4,
        "iters": 1000,
        "val_batches": 25,
        "learning_rate": 1e-5,
        "steps_per_report": 10,
        "steps_per_eval": 200,
        "save_every": 100,
        "max_seq_length": 2048,
        "grad_accumulation_steps": 1,
        "mask_prompt": False,
    }
)
#: Where an adapter is written where nothing is stated.
MLX_LM_ADAPTER_PATH = "adapters"
#: Every key that `mlx_lm.lora` reads of a configuration; it passes over any other in silence.
MLX_LM_KEYS = frozenset(MLX_LM_DEFAULTS) | {
    "adapter_path",
    "chat_feature",
    "clear_cache_threshold",
    "completion_feature",
    "config",
    "data",
    "grad_checkpoint",
    "hf_dataset",
    "lora_parameters",
    "lr_schedule",
    "model",
    "optimizer_config",
    "project_name",
    "prompt_feature",
    "report_to",
    "resume_adapter_file",
    "test",
    "test_batches",
    "text_feature",
    "train",
    "trust_remote_code",
}
