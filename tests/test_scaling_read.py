"""Any table of losses: what people write in files is read or refused by its line, and `ablate fit --csv` says what it holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ablate.cli import main
from ablate.errors import AblateError
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.read import read

DATA = Path(__file__).parent / "data" / "scaling"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str) -> Path:
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return file


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`ablate fit` with these arguments → what it prints; a refusal after "ablate: "."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ablate", "fit", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert end.value.code in (0, None) if not err else end.value.code == 2, err
        return out + err

    return run


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("n,loss\n1.3M,3\n70m,2.5\n1B,2\n", [1.3e6, 7e7, 1e9]),
        ('n,loss\n"1,300,000",3\n1e8,2.5\n1_000_000,2\n', [1.3e6, 1e8, 1e6]),
        ("n;loss\n1,5M;3,0\n2,5e8;2,5\n2k;2\n", [1.5e6, 2.5e8, 2e3]),
        ("# a comment\nn\tloss\n\n1e6\t3\n2e6\t2.5\n3e6\t2\n", [1e6, 2e6, 3e6]),
        ("n  loss\n1e6  3\n2e6 2.5\n3e6 2\n", [1e6, 2e6, 3e6]),
        ("\ufeffn | loss\n1 T| 3\n2.|2.5\n.5|2\n", [1e12, 2, 0.5]),
    ],
)
def test_numbers_as_people_write_them(write: Write, text: str, n: list[float]) -> None:
    found = read(write(text), n="n", loss="loss")
    assert found.columns["n"].tolist() == n and found.loss.tolist() == [3, 2.5, 2]


@pytest.mark.parametrize(
    ("text", "arguments", "complaint"),
    [
        ("params,loss\n1,2\n", {"n": "parms", "loss": "loss"}, "column in --n 'parms'; did you mean 'params'"),
        ("n,loss\n1,2\n", {"n": "n", "loss": "loss", "group": ["x"]}, "unknown column 'x'"),
        ("n,loss\n1,2\n", {"loss": "loss"}, "one or more of --n, --d and --flops"),
        ("n,loss\n1,2\n", {"n": "n", "loss": "n"}, "one column cannot be two things"),
        ("n,loss\n1,2\n3,two\n", {"n": "n", "loss": "loss"}, "line 3: loss = 'two': a number is wanted, such as 2.31"),
        ("n,loss\n1,2K\n", {"n": "n", "loss": "loss"}, "line 2: loss = '2K'"),
        ("n,loss\n1,2,3\n", {"n": "n", "loss": "loss"}, "line 2: 3 values for 2 columns"),
        ("n,n,loss\n1,1,2\n", {"n": "n", "loss": "loss"}, "two columns are called 'n'"),
        ("n,loss\n1,-2\n2,0\n", {"n": "n", "loss": "loss"}, "no row has a positive number in each of loss, n"),
        ("n,loss\n", {"n": "n", "loss": "loss"}, "a line of column names and a line for each run"),
        ('n,loss\n1,"2\n3"\n', {"n": "n", "loss": "loss"}, "goes on in the next line"),
        ("n,t,loss\n1,a,2\n", {"n": "n", "loss": "loss", "where": {"t": "b"}}, "no row has t = 'b'; its values are 'a'"),
    ],
)
def test_what_is_no_table_is_refused(write: Write, text: str, arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(AblateError, match=re.escape(complaint)):
        read(write(text), **arguments)  # type: ignore[arg-type]


def test_rows_without_a_number_are_left_out_and_named_and_rows_that_stand_twice_count_once(write: Write) -> None:
    rows = ["1e6,1e8,3,a", "2e6,,2.9,a", "3e6,1e8,nan,a", "-4e6,1e8,2.8,a", "5e6,1e8,2.7,a", "5e6,1e8,2.7,a", "5e6,1e8,2.7,b"]
    found = read(write("n,d,loss,note\n" + "\n".join(rows)), n="n", d="d", loss="loss")
    assert found.columns["n"].tolist() == [1e6, 5e6, 5e6]
    said = " ".join(found.notes)
    for part in ("1 row is the same as others in every column", "in d (line 3)", "in loss (line 4)", "in n (line 5)"):
        assert part in said, said
    assert "1 row is the same as others in loss, n, d, though not in note" in said


def test_groups_are_named_by_their_columns_and_compared_with_the_first(write: Write) -> None:
    text = "n,loss,x,y\n1,3,a,1\n2,2,a,1\n1,3,a,2\n1,3,b,1\n"
    found = read(write(text), n="n", loss="loss", group=["x", "y"])
    assert found.curves == ("a, 1", "a, 1", "a, 2", "b, 1") and found.against == {"a, 2": "a, 1", "b, 1": "a, 1"}
    assert read(write(text), n="n", loss="loss", group=["x"], where={"y": "1"}).curves == ("a", "a", "b")


def test_published_exponents_from_the_command_line(fit: Callable[..., str]) -> None:
    """Porian et al. 2024, the tuned protocol on RefinedWeb: 0.497."""
    rows = ["--where", "file=summary_df", "--where", "hparams=tuned"]
    said = fit("--csv", str(DATA / "porian_isoflop_points.csv"), "--n", "n", "--flops", "flops", "--loss", "loss", *rows)
    match = re.search(r"isoFLOP minima of 12 budgets.*\n.*a = ([\d.]+)", said)
    assert match and float(match[1]) == pytest.approx(0.497, abs=0.03)
    assert "Tokens taken as d = flops / 6n." in said and "the form does not describe them" in said


def test_a_table_says_what_would_suffice(fit: Callable[..., str], write: Write) -> None:
    rng = np.random.default_rng(0)
    n, d = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4)))
    loss = FORMS["nd"].loss(USUAL, {"n": n, "d": d}) * np.exp(0.03 * rng.normal(size=16))
    text = "N,D,loss\n" + "\n".join(f"{a},{b},{c}" for a, b, c in zip(n, d, loss, strict=True))
    said = "\n".join(read(write(text), n="N", d="D", loss="loss").fit(bootstraps=50).lines())
    assert "For 0.2 the noise would have to be about" in said and "At the noise there is, this would do: " in said
    few = "N,loss\n1e6,3\n1e7,2.5\n1e8,2.2\n"
    refused = fit("--csv", str(write(few)), "--n", "N", "--loss", "loss")
    assert (
        refused.startswith("ablate: L(N) needs at least 4 sizes and 5 runs; there are 3 sizes") and "this would do: " in refused
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give a study, or a table with --csv FILE"),
        (["scale", "--csv", "t.csv"], "give a study, or a table"),
        (["scale", "--n", "x"], "--n names a column of a table"),
        (["--csv", "t.csv", "--n", "x"], "--csv wants --loss COLUMN"),
        (["--csv", "t.csv", "--n", "x", "--loss", "y", "--where", "z"], "COLUMN=VALUE is wanted"),
        (["--csv", "no-such.csv", "--n", "x", "--loss", "y"], "no-such.csv: cannot be read"),
    ],
)
def test_options_that_mean_nothing_are_refused(fit: Callable[..., str], arguments: list[str], complaint: str) -> None:
    assert complaint in fit(*arguments)
