"""LoRA adapters from PEFT's format to mlx-lm's and back, without loss or not at all."""
