"""A worker with blocks and checkpoints at short intervals, which must change no number."""

from ablate.launch import worker


def with_short_intervals() -> worker.Trainer:
    from ablate.launch.trainer import TorchTrainer
    from ablate.train import engine

    engine.BLOCK_SECONDS = 0.02
    engine.CHECKPOINT_SECONDS = 0.1
    return TorchTrainer()


if __name__ == "__main__":
    worker.HEARTBEAT = 0.05
    worker.main(with_short_intervals)
