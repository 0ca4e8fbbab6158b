"""What several commands have to judge alike, each with one `Limits`."""
