"""Adapters and models as numbers: norms, spectra, what changed, what fusing did."""
