"""Losses as curves and as figures by token: what a log shows, what rows were read as."""
