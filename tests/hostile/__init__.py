"""Files made by an enemy, or by a crash."""
