"""The order of training windows and the choice of held-out ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ablate.data import batches
from ablate.data.batches import Batches, held_out_starts, length_windows, order, windows_per_epoch
from ablate.evaluation import n_scored

# n_ctx, n_tokens
sizes = st.tuples(st.integers(2, 20), st.integers(0, 300)).map(
    lambda pair: (pair[0], pair[0] + 1 + pair[1])
)


@given(sizes, st.integers(0, 2**31 - 1), st.integers(1, 7), st.integers(1, 30))
def test_an_epoch_reads_every_window_once_and_within_the_text(
    size: tuple[int, int], seed: int, batch: int, steps: int
) -> None:
    n_ctx, n_tokens = size
    starts = order(seed, n_tokens, n_ctx, batch, steps)
    assert (
        starts.shape == (steps, batch)
        and starts.min() >= 0
        and starts.max() + n_ctx + 1 <= n_tokens
    )
    per_epoch = windows_per_epoch(n_tokens, n_ctx)
    for first in range(0, starts.size, per_epoch):
        epoch = np.sort(starts.ravel()[first : first + per_epoch])
        assert (np.diff(epoch) >= n_ctx).all()  # no token is predicted twice
        if len(epoch) == per_epoch:
            assert epoch[0] < n_ctx and (np.diff(epoch) == n_ctx).all()
            assert n_tokens - (epoch[-1] + n_ctx + 1) < 2 * n_ctx  # and few are left out


@given(sizes, st.integers(1, 7), st.integers(1, 30), st.integers(1, 30))
def test_a_longer_run_begins_as_a_shorter_one(
    size: tuple[int, int], batch: int, short: int, more: int
) -> None:
    n_ctx, n_tokens = size
    long = order(3, n_tokens, n_ctx, batch, short + more)
    assert np.array_equal(long[:short], order(3, n_tokens, n_ctx, batch, short))


def test_epochs_have_orders_and_offsets_of_their_own_and_so_have_seeds() -> None:
    per_epoch = windows_per_epoch(1000, 16)
    epochs = order(5, 1000, 16, per_epoch, 8)
    assert (
        len({tuple(epoch) for epoch in epochs}) == 8 and len({epoch.min() for epoch in epochs}) > 3
    )
    assert not np.array_equal(epochs, order(6, 1000, 16, per_epoch, 8))
    assert not np.array_equal(np.sort(epochs[0]), epochs[0])


def test_the_order_is_the_same_on_every_machine_and_version() -> None:
    # Recorded once: a change makes runs that are stored already not what their key says (raise
    # config.NUMERICS).
    assert order(0, 100, 8, 4, 3).tolist() == [[52, 76, 60, 68], [4, 44, 28, 20], [12, 36, 84, 33]]


def test_epochs_seen_are_windows_read() -> None:
    assert batches.epochs(tokens=16 * 61, n_tokens=1000, n_ctx=16) == 1
    made = Batches(np.zeros(1000, np.uint8), [0], 16, 6, 4, "cpu")
    assert made.epochs(4) == batches.epochs(4 * 6 * 16, 1000, 16) == 24 / 61


@pytest.mark.parametrize(
    ("kind", "largest"), [(np.uint8, 255), (np.uint16, 65535), (np.uint32, 100_000)]
)
def test_batches_are_the_windows_of_each_seed(tmp_path: Path, kind: type, largest: int) -> None:
    text = np.random.default_rng(0).integers(0, largest + 1, 500).astype(kind)
    text[7] = largest
    text.tofile(tmp_path / "text.bin")
    mapped = np.memmap(tmp_path / "text.bin", kind, "r")
    made = Batches(mapped, [3, 4], 10, 5, 20, "cpu")
    some = made.several(17, 3)
    assert some.shape == (3, 2, 5, 11) and some.dtype == torch.int64
    for step, windows in zip((17, 18, 19), some, strict=True):
        for member, seed in enumerate((3, 4)):
            starts = order(seed, 500, 10, 5, 20)[step]
            assert windows[member].tolist() == [
                text[start : start + 11].tolist() for start in starts
            ]


def test_a_mapped_text_is_not_read_into_memory_on_the_cpu(tmp_path: Path) -> None:
    np.zeros(100, np.uint16).tofile(tmp_path / "text.bin")
    mapped = np.memmap(tmp_path / "text.bin", np.uint16, "r")
    assert batches.on_device(mapped, "cpu").data_ptr() == mapped.ctypes.data


def test_only_what_runs_read_goes_to_a_device() -> None:
    text = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8)
    starts = np.stack([order(seed, len(text), 10, 4, 6) for seed in (0, 1)])
    small, moved = batches.compact(text, starts, 11)
    assert len(small) <= starts.size * 11
    assert np.array_equal(
        small[moved[..., None] + np.arange(11)], text[starts[..., None] + np.arange(11)]
    )


def _positions(n_tokens: int, n_ctx: int, tokens: int) -> np.ndarray:
    """The targets that held-out windows score, as positions in the text."""
    return held_out_starts(n_tokens, n_ctx, tokens)[:, None] + np.arange(1, n_ctx + 1)


@given(st.integers(2, 2000), st.integers(1, 30_000), st.integers(1, 40_000))
def test_held_out_windows_never_score_a_token_twice(n_ctx: int, more: int, tokens: int) -> None:
    n_tokens = n_ctx + more
    scored = _positions(n_tokens, n_ctx, tokens)
    assert len(np.unique(scored)) == scored.size
    assert len(scored) == max(1, min(tokens // n_ctx, (n_tokens - 1) // n_ctx))


def test_arms_with_other_contexts_score_the_same_tokens_all_over_the_text() -> None:
    scored = [set(_positions(100_000, n_ctx, 16384).ravel()) for n_ctx in (32, 256, 1024)]
    assert scored[0] == scored[1] == scored[2] and len(scored[0]) == 16384
    assert all(
        any(part <= position < part + 10_000 for position in scored[0])
        for part in range(0, 100_000, 10_000)
    )


@given(st.integers(2, 64), st.integers(0, 3000), st.integers(1, 5000))
def test_every_length_scores_the_same_tokens_with_more_before_them(
    n_ctx: int, more: int, tokens: int
) -> None:
    text = np.arange(4 * n_ctx + 1 + more, dtype=np.uint32)
    windows = length_windows(text, n_ctx, (1, 2, 4), tokens)
    assert windows.shape[1] == 4 * n_ctx + 1
    assert (np.diff(windows.numpy()) == 1).all()
    scored = windows[:, -n_scored(n_ctx) :].numpy()
    assert len(np.unique(scored)) == scored.size
    assert 1 <= len(windows) <= max(1, tokens // n_ctx)
