"""The view `pairs` in time that grows with the number of seeds; before, with its square."""

from __future__ import annotations

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Change no table: the views are made anew after every migration."""
