"""Places a study's runs on devices, follows them, and keeps what they write: the way from a plan to
a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.launch.launcher import Outcome, run

__all__ = ["Outcome", "run"]


def __getattr__(name: str) -> Any:
    """`run` and `Outcome`, imported when first asked for: a worker, which is in this package too,
    knows no database.
    """
    if name in __all__:
        from ablate.launch import launcher

        return getattr(launcher, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
