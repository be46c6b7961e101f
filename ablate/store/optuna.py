"""Storages of Optuna, an SQLite file or a journal: opened by Optuna itself, and never written."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.errors import AblateError
from ablate.store import mlflow


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Give the storage in a file.

    Raises:
        AblateError: It is damaged, which may show only when it is read inside of the context.
    """
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield _storage(path)
    except AblateError:
        raise
    except (OptunaError, SQLAlchemyError, OSError, ValueError, LookupError, TypeError) as error:
        # the last ones come from JSON, names and numbers that Optuna did not write
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise AblateError(
            f"{path}: cannot be read as a storage of Optuna ({reason:.200})"
        ) from None


def _storage(path: Path) -> Any:
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import BaseJournalBackend

    class Journal(BaseJournalBackend):
        """Optuna's own class for files opens them to write, and creates a missing one."""

        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            with path.open(encoding="utf-8") as file:
                for line in itertools.islice(file, log_number_from, None):
                    if line.endswith("\n"):  # else it is being written
                        yield json.loads(line)

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            raise NotImplementedError

    if not mlflow.tables(path):
        return JournalStorage(Journal())
    # the path is no part of SQLAlchemy's URL, where characters of a path would have a meaning
    read_only = f"{path.resolve().as_uri()}?mode=ro"
    return RDBStorage(
        "sqlite://",
        engine_kwargs={"creator": lambda: sqlite3.connect(read_only, uri=True)},
        skip_compatibility_check=True,
        skip_table_creation=True,
    )
