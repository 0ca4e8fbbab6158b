"""What a run left behind: one file a kind of evidence, read on first use."""
