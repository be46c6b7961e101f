"""From tokens to what a model sees: batches in their order, objectives, and passages for linear
probes.
"""
