"""From tokens to a model's input: batches in order, objectives, passages for linear probes."""
