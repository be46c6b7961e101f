"""Training: optimiser, schedule, the step, evaluations, checkpoints; without a database."""
