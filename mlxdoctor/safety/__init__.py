"""Limits on reading, time and memory; child processes; quoting; whole-file writes."""
