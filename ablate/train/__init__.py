"""Training: optimiser, schedule, the step, evaluations, checkpoints. Knows no database."""
