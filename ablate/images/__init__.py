"""Sets of images with their classes: the shipped digits, .npz files, folders. No torch."""

from ablate.images.sets import NAMED, Images, ImageSet, find, load

__all__ = ["NAMED", "ImageSet", "Images", "find", "load"]
