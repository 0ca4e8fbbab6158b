"""Pure functions from arrays and texts to one frozen description each."""
