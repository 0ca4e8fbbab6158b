"""One module a rule."""
