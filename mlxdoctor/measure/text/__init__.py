"""Answers and data as text: words, formats, statistics over prompts."""
