"""Reading the logs of MLX trainers: one file a family of formats."""
