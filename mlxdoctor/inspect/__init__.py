"""An adapter or a model as a table."""
