"""A worker process as the launcher holds it: jobs go in, the numbers of finished jobs come out, and
its end is explained.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import ablate
from ablate.launch.devices import Device


class WorkerProcess:
    """A running `ablate.launch.worker`. It ends by itself when its pipe closes, be it by the death
    of this process.

    turns: the file by which the workers of its device take turns, where they do; see
    `ablate.launch.turns`.
    """

    def __init__(self, device: Device, turns: IO[bytes] | None = None):
        source = str(Path(ablate.__file__).parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        given = [turns.fileno()] if turns else []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ablate.launch.worker"]
            + [
                "--device",
                device.name,
                "--threads",
                str(device.threads),
                "--memory",
                str(device.memory),
            ]
            + [f"--turns={number}" for number in given],
            pass_fds=given,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # a Ctrl-C at the terminal is the launcher's to deal with
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._unread = b""
        self.ready = False  # it has set its device up

    def fileno(self) -> int:
        """Readable when there is an answer, or the end."""
        return self._stdout.fileno()

    def send(self, job: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: `finished` says so
            self._stdin.write(json.dumps(job).encode() + b"\n")
            self._stdin.flush()

    def finished(self) -> list[int] | None:
        """The numbers of the jobs finished since the last call; None when the process has ended. To
        be called when readable.
        """
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        self.ready = self.ready or any("ready" in answer for answer in answers)
        return [answer["done"] for answer in answers if "done" in answer]

    def close(self) -> None:
        """Have it checkpoint what it trains, and end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def kill(self) -> None:
        self._process.kill()

    @property
    def exit_code(self) -> int | None:
        """None while it lives; −n when signal n ended it."""
        return self._process.poll()

    def obituary(self) -> str:
        """Why it ended, with the last that it wrote to stderr. For a process that has closed its
        side of the pipe.
        """
        code = self._end(10.0)
        cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4000))
        last_words = self._errors.read().decode(errors="replace").strip()
        return f"the worker died ({cause})" + (f"\n{last_words}" if last_words else "")

    def release(self, seconds: float) -> None:
        """Close it, wait for its end, kill it when that takes longer than `seconds`, and let go of
        its pipes.
        """
        self.close()
        self._end(seconds)
        self._stdout.close()
        self._errors.close()

    def _end(self, seconds: float) -> int:
        """Its exit code; waits for it, and kills when that takes longer than `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()
