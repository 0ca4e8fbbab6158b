"""An adapter as a table."""
