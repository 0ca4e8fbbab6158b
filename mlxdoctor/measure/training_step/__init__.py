"""What one training step of a user's own trainer does to a live model: made, and measured."""
