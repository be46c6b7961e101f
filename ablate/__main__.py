"""The command `ablate` (`python -m ablate`): closed streams and Ctrl-C are handled here."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line; Ctrl-C ends it silently with exit code 130, even during imports."""
    open_streams()
    heeds = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # one started in the background does not
    if heeds:
        signal.signal(signal.SIGINT, leave)
    from ablate import cli

    try:
        if heeds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    except KeyboardInterrupt:
        leave()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave()
        raise
    finally:
        if heeds:
            signal.signal(signal.SIGINT, leave)


def leave(*_: object) -> None:
    """Exit at once: Python would wait for threads, such as one that still imports modules."""
    os._exit(INTERRUPTED)


def open_streams() -> None:
    """Open closed standard streams on /dev/null, so that no other file takes their number."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so the stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


if __name__ == "__main__":
    main()
