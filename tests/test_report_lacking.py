"""What a figure says of arms that have no value where others have one."""

from __future__ import annotations

import pandas as pd

from ablate.report.plots import lacking


def test_a_figure_notes_where_an_arm_is_not_defined() -> None:
    rows = [("rotary", 1.0), ("rotary", 2.0), ("rotary", 4.0), ("learned", 1.0), ("learned", 1.0)]
    frame = pd.DataFrame(rows, columns=["arm", "context"])
    assert lacking(frame, "context") == "Not defined for learned at 2 and 4. "
    assert lacking(frame[frame["arm"] == "rotary"], "context") == ""
