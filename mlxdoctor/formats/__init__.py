"""Report formats: each a pure function of one dictionary."""
