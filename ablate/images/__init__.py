"""Sets of images with their classes: the shipped digits, .npz files, folders. No torch."""

from ablate.images.sets import Images, ImageSet, find, load

__all__ = ["ImageSet", "Images", "find", "load"]
