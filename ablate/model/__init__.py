"""The transformer: norms, positions, attention, MLPs, block topologies, each level of a factor one
class.

Parameters carry a leading pack dimension K, also when K = 1; activations are [K, B, T, C]. Only
`layers`, `norm` and what owns a parameter of its own know of it.
"""
