"""LoRA adapters from PEFT's format to mlx-lm's and back, without either library.

The adapter's modules are read as `PortableModule`s, and written as the other format has them. What
that has no place for is refused with the reason; nothing is dropped or rounded.
"""
