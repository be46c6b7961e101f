"""The other processes of a worker whose runs train on several devices: ranks 1, 2, … of each run.

The worker is rank 0. It starts the other ranks (`ablate.launch.rank`), sends them its jobs, and
ends with the first of them that ends, without which it would wait for ever. They end when their
pipe closes, because the worker has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from ablate.kinds import Job
from ablate.launch.messages import encode
from ablate.train import ranks

HOST = "127.0.0.1"  # all ranks are on one host
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
# Seconds in which the ends of several ranks are seen together: the end of one ends others.
TOGETHER = 1.0
FAIL = Callable[[str, str], None]


@dataclass(frozen=True)
class Gone:
    """A rank that has ended.

    Attributes:
        who: The rank, in words.
        code: Its exit code; −n if signal n ended it.
        status: The status of the attempt that its error ends; "" where it is not to blame.
        error: The error, with its trace; "" if it said nothing.
    """

    who: str
    code: int
    status: str = ""
    error: str = ""

    @property
    def how(self) -> str:
        """How it ended, in one line."""
        if self.error:
            return f"{self.who}: {self.error.strip().splitlines()[-1]}"
        cause = f"exit code {self.code}"
        if self.code < 0:
            cause = f"killed by {signal.Signals(-self.code).name}"
        return f"{self.who} died ({cause})"


class Peers:
    """Starts the other ranks of a worker, joins them, and watches over them.

    Args:
        own: The device of the worker itself.
        others: A device for each other rank.
        threads: CPU threads of each rank.
        memory: Bytes that each rank may take of its device.
    """

    def __init__(self, own: str, others: Sequence[str], threads: int, memory: int):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        of = len(others) + 1
        store = dist.TCPStore(HOST, 0, of, is_master=True, wait_for_workers=False)
        self._gone: queue.SimpleQueue[Gone] = queue.SimpleQueue()
        self._any_gone = threading.Event()
        self._fail: FAIL | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank, device in enumerate(others, 1):
            arguments = {"device": device, "threads": threads, "memory": memory}
            arguments |= {"rank": rank, "of": of, "port": store.port}
            words = [f"--{name}={value}" for name, value in arguments.items()]
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ablate.launch.rank", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._processes.append(process)
            who = f"rank {rank} of {of} on {device}"
            threading.Thread(target=self._watch, args=(who, process), daemon=True).start()
        threading.Thread(target=self._end, daemon=True).start()
        ranks.join(own, 0, of, store)

    def begin(self, job: Job, fail: FAIL) -> None:
        """Let the other ranks train a job with this process.

        Args:
            job: The job.
            fail: See `ablate.kinds.Context.fail`.
        """
        self._fail = fail
        for process in self._processes:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):  # it has ended, which `_watch` sees
                process.stdin.write(encode(0, job, ()))
                process.stdin.flush()

    def settle(self) -> None:
        """Return if an error of this process is its own; else end with the rank that caused it."""
        if self._any_gone.wait(2 * TOGETHER):
            threading.Event().wait()

    def _watch(self, who: str, process: subprocess.Popen[bytes]) -> None:
        """Read what a rank says until it ends."""
        assert process.stdout
        said: dict[str, str] = {}
        for line in process.stdout:
            match json.loads(line):
                case {"signal": number}:  # that asks it to end
                    os.kill(os.getpid(), number)
                case error:
                    said = error
        gone = Gone(who, process.wait(), **said)
        self._any_gone.set()
        self._gone.put(gone)

    def _end(self) -> None:
        """Wait until a rank has ended, and end this process for that reason."""
        gone = [self._gone.get()]
        time.sleep(TOGETHER)
        while not self._gone.empty():
            gone.append(self._gone.get())
        lost = [one for one in gone if not one.status]
        out_of_memory = [one for one in gone if one.status == "oom"]
        cause = [*lost, *out_of_memory, *gone][0]
        try:
            if cause.status and self._fail:
                self._fail(cause.status, f"{cause.who} failed\n{cause.error}")
            print(cause.error, cause.how, sep="\n", file=sys.stderr, flush=True)
        finally:
            os._exit(max(1, cause.code))
