"""A Slurm cluster of one node, for tests: its daemons, in a folder of their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

TEMPLATE = Path(__file__).parent / "slurm.conf.in"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
FOLDERS = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def missing() -> str:
    """Why no cluster can start here; "" if one can."""
    lacking = [name for name in NEEDED if not shutil.which(name, path=FOLDERS)]
    return f"{lacking[0]} is not installed: apt-get install slurm-wlm munge" if lacking else ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cluster:
    """The daemons. Ends exactly the processes that it has started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.config = self.folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen] = {}
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        values = {
            "HOST": socket.gethostname().split(".")[0],
            "DIR": str(self.folder),
            "USER": getpass.getuser(),
            "CTLD_PORT": str(free_port()),
            "SLURMD_PORT": str(free_port()),
        }
        text = TEMPLATE.read_text()
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        self.config.write_text(text)
        gpus = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
        (self.folder / "gres.conf").write_text(gpus)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        try:
            files = {"socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
            own = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
            self._start("munged", "--foreground", "--force", f"--key-file={key}", *own)
            self.wait_for(lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D", "-c")
            self.start_slurmd()
        except BaseException:
            self.stop()
            raise

    def start_slurmd(self) -> None:
        """Start the daemon of the node, and wait until the node takes jobs."""
        self._start("slurmd", "-D")
        self.wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T") in ("idle", "mixed", "allocated"))

    def kill_slurmd(self) -> None:
        """Kill -9."""
        self._daemons["slurmd"].kill()
        self._daemons["slurmd"].wait()

    def ask(self, *words: str) -> str:
        """The output of a command of Slurm; "" if it fails."""
        environment = {**os.environ, "SLURM_CONF": str(self.config)}
        ended = subprocess.run(words, capture_output=True, text=True, env=environment)
        return ended.stdout.strip() if ended.returncode == 0 else ""

    def running(self) -> list[str]:
        """Ids of the jobs that run."""
        return self.ask("squeue", "-h", "-r", "-t", "running", "-o", "%i").split()

    def empty(self) -> None:
        """End all jobs."""
        self.ask("scancel", "--user", getpass.getuser())
        self.wait_for(lambda: not self.ask("squeue", "-h", "-o", "%i"))

    def stop(self) -> None:
        """End the daemons, the jobs first."""
        if "slurmctld" in self._daemons:
            self.ask("scancel", "--signal=KILL", "--full", "--user", getpass.getuser())
            self.empty()
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait_for(self, condition, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():
            dead = [name for name, one in self._daemons.items() if one.poll() is not None]
            assert not dead and time.monotonic() < end, f"{dead or 'timed out'}: {self._logs()}"
            time.sleep(0.05)

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=FOLDERS)
        assert program
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "SLURM_CONF": str(self.config)},
                start_new_session=True,
            )

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.out"))
