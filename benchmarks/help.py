"""The time of `ablate --help`, as a ratio to that of a Typer application with two empty commands.

    python benchmarks/help.py

Target: at most 2. The two are started alternately, and the fastest start of each counts.
"""

from __future__ import annotations

import subprocess
import sys
import time

ROUNDS, TARGET = 15, 2.0
BARE = (
    "import typer\napp = typer.Typer()\n@app.command()\ndef one() -> None: ...\n@app.command()\ndef"
    " two() -> None: ...\napp()"
)
PROGRAMS = {
    "bare": [sys.executable, "-c", BARE, "--help"],
    "ablate": [sys.executable, "-m", "ablate", "--help"],
}


def main() -> None:
    fastest = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(ROUNDS):
        for name, command in PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            fastest[name] = min(fastest[name], time.perf_counter() - start)
    ratio = fastest["ablate"] / fastest["bare"]
    print(
        f"ablate --help {fastest['ablate']:.3f} s, a bare Typer application {fastest['bare']:.3f}"
        f" s: {ratio:.2f} times"
    )
    sys.exit(ratio > TARGET)


if __name__ == "__main__":
    main()
