"""Known bugs of mlx and mlx-lm, by the traces they leave."""
