"""The pictures of a report, one file a figure."""
