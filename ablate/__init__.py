"""ablate: find out whether a part of a transformer matters, and by how much."""

__version__ = "0.1.0"
