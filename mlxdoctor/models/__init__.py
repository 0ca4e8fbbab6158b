"""What runs a model: loads it, asks it for answers and for the losses of tokens."""
