"""What one training step of a user's own trainer does to a live model, measured.

Code that looks right can do nothing: a flag says that an adapter is there, targets look
shifted, gradients are zero. So the code is not read; the step is made, and looked at.
"""
