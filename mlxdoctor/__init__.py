"""mlxdoctor tells a person why an MLX LoRA fine-tune failed, and proves it."""
