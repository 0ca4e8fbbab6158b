"""LoRA adapters from PEFT's format to mlx-lm's and back, without either library.

One format is read into a `PortableAdapter`, and the other is written from it. What the other
format has no place for is refused with the reason; nothing is dropped or rounded.
"""
