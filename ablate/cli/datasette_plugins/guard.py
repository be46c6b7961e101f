"""A plugin of Datasette, which loads it from this folder: see `ablate.cli.guard`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from datasette import hookimpl

from ablate.cli.guard import TOKEN, App, guarded


@hookimpl
def asgi_wrapper(datasette: Any) -> Callable[[App], App]:
    """Guard Datasette's application."""
    return lambda app: guarded(app, os.environ[TOKEN])
