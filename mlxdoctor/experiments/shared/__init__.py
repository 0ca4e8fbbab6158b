"""What all experiments share: the run's recipe, reruns of it, and the rules of a verdict."""
