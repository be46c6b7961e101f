"""The command `ablate`, also as `python -m ablate`, with closed streams and Ctrl-C handled."""

from __future__ import annotations

import gc
import os
import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line. Ctrl-C ends it silently with exit code 130, during imports too."""
    open_streams()
    # A process that a shell started in the background ignores Ctrl-C.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, leave)
    from ablate import cli

    try:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main()
    except KeyboardInterrupt:
        leave()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave()
        raise
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, leave)
        gc.freeze()  # else Python looks for garbage in all that was imported as it ends: 0.3 s


def leave(*_: object) -> None:
    """End at once, without waiting for threads, one of which may be importing."""
    os._exit(INTERRUPTED)


def open_streams() -> None:
    """Open closed standard streams as /dev/null.

    Otherwise printing fails, and the next file that is opened takes a stream's number.
    """
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so the stream's own
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


if __name__ == "__main__":
    main()
