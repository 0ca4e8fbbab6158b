"""LoRA adapters from PEFT's format to mlx-lm's and back, without either library.

A source is read into a `PortableAdapter` (`from_mlx`, `from_peft`), which the other
format is written from (`to_mlx`, `to_peft`). What the other format has no place for is
refused with the reason; nothing is dropped or rounded.
"""
