"""Every token of a row, and whether it is trained on."""
