"""The transformer: norms, positions, attention, MLP, blocks, as components name them.

Parameters have a leading pack dimension K, also where K = 1; activations are [K, B, T, C]. Only
`layers`, `norm` and modules with parameters of their own handle it.
"""
