"""Which saved checkpoint is the last good one, and which the best: a table over saves."""
