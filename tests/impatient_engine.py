"""The engine with blocks and checkpoints at short intervals, which must change no number."""

from ablate.launch.engine import *  # noqa: F403
from ablate.train import engine

engine.BLOCK_SECONDS = 0.02
engine.CHECKPOINT_SECONDS = 0.1
