"""The gate: many adapters or runs under one policy, for continuous integration."""
