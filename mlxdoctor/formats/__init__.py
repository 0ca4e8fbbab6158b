"""Report formats: pure functions of a report or of a gate's result, one file each."""
