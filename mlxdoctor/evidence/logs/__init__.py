"""Reading a log: what the formats in `log_formats/` are made with."""
