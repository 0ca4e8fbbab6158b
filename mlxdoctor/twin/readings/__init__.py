"""Readings of a log: what a trainer may have computed in place of mlx-lm's loss.

Every function of these modules that `@reading` decorates is one, and is found here: one file adds
one. A reading changes the settings or the parts of a run; the replay that then gives the recorded
losses says what the trainer did. Its code is that of the check `replay`.
"""
