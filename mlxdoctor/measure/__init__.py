"""Evidence as numbers, and what a running model answers, loses and learns in one step."""
