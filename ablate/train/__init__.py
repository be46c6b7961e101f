"""Training: optimiser, schedule, the step, evaluations, checkpoints. It knows no database."""
