"""study.toml → `Study`: one question, what varies, and what every run starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ablate.config import Evaluation

Fields = dict[str, Any]  # field of a run's configuration → value


@dataclass(frozen=True)
class Study:
    """One question, as its file states it. Factors keep the file's order; a factor's first level is its baseline."""

    name: str
    question: str
    metric: str
    goal: str  # "min" | "max"
    design: str  # "grid" | "one-factor" (later also "leave-one-out", "add-one-in")
    within: tuple[str, ...]
    seeds: tuple[int, ...]
    base: Fields
    factors: dict[str, dict[str, Fields]]  # factor → level's label → the fields it sets
    exclude: tuple[dict[str, str], ...] = ()  # factor → level's label
    evaluation: Evaluation = field(default_factory=Evaluation)
    toml: str = ""  # the file's text
