"""Known mistakes of MLX training code, found in its syntax tree. Nothing is imported or run."""
