"""What every step uses: the programs, a separate holder, clients, and rows of results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

CLIENTS = Path(__file__).resolve().parent / "clients.py"


class Failed(Exception):
    """A check has failed, and the step ends."""


class Skipped(Exception):
    """A check cannot run on this machine. The text says why."""


def patience(is_small: bool) -> int:
    """Returns a factor for limits, because a test may run on a machine that is ten times slower."""
    return 10 if is_small else 1


class Places(NamedTuple):
    """The paths of stfs in an unpacked or installed tree, or in a build directory."""
    gpu: Path
    info: Path
    library: Path
    module: Path  # the directory of stfs_gpu.py

    @staticmethod
    def of(tree: Path) -> Places:
        if (tree / "CMakeCache.txt").exists():
            source = Path(__file__).resolve().parents[3]
            return Places(tree / "tools/gpu/stfs-gpu", tree / "tools/stfs-info",
                          tree / "tools/library/libstfs.so.0", source / "tools/library/python")
        modules = [*tree.glob("lib/python3*/*-packages/stfs_gpu.py")]
        libraries = [*tree.glob("lib/libstfs.so.0"), *tree.glob("lib/*/libstfs.so.0")]
        return Places(tree / "bin/stfs-gpu", tree / "bin/stfs-info",
                      next(iter(libraries), tree / "lib/libstfs.so.0"),
                      next(iter(modules), tree / "lib/python3/stfs_gpu.py").parent)

    def missing(self) -> list[str]:
        return [str(path) for path in (self.gpu, self.info, self.library,
                                       self.module / "stfs_gpu.py") if not path.exists()]


@dataclass
class Step:
    name: str
    device: str
    places: Places
    shared: Path  # checkpoints that several steps use
    own: Path     # a directory of this step
    is_small: bool
    write: Callable[[dict[str, Any]], None]  # stores a row
    has_failed: bool = False  # a row has the status "failed"
    warnings: str = ""        # standard error of the last program

    def row(self, name: str, status: str = "ok", note: str = "", **values: Any) -> None:
        self.has_failed |= status == "failed"
        self.write({"step": self.name, "row": name, "status": status, "note": note, **values})

    def checked(self, name: str, is_so: bool, otherwise: str, note: str = "") -> None:
        """Writes a row for a check. The step continues if the check fails."""
        if is_so:
            self.row(name, note=note)
        else:
            self.row(name, "failed", otherwise)

    def measured(self, name: str, value: float, unit: str, ceiling: float | None = None,
                 note: str = "") -> None:
        share = {} if not ceiling else {"ceiling": ceiling, "share": value / ceiling}
        self.row(name, "measured", note, value=value, unit=unit, **share)

    def size(self, full: int, small: int) -> int:
        return small if self.is_small else full

    @property
    def is_fake(self) -> bool:
        return self.device != "cpu" and bool(os.environ.get("STFS_GPU_DRIVER"))

    def disk_left(self) -> int:
        return shutil.disk_usage(self.shared).free

    def memory_left(self) -> int:
        return memory_of_host("MemAvailable")

    def device_left(self) -> int:
        return self.client("free")["bytes"]

    def wait_until(self, what: str, is_so: Callable[[], bool], seconds: float = 20) -> None:
        seconds *= patience(self.is_small)
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {seconds:g} seconds")
            time.sleep(0.005)

    # --- programs

    def run(self, *words: object) -> str:
        """Runs a program and returns its standard output. Its standard error is then in `warnings`. If
        it fails, raises Failed with its status and last line."""
        done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            program = f"{Path(str(words[0])).name} {words[1]}"
            raise Failed(f"{program}: status {done.returncode}: {last}")
        self.warnings = done.stderr.strip()
        return done.stdout

    def gpu(self, *words: object) -> str:
        return self.run(self.places.gpu, *words)

    def gpu_json(self, verb: str, *words: object) -> Any:
        return json.loads(self.gpu(verb, "--json", *words))

    def load(self, *words: object) -> Any:
        return self.gpu_json("load", "--device", self.device, *words)

    def labels(self) -> list[str]:
        return [row["label"] for row in self.gpu_json("ls")]

    # --- clients

    def client_command(self, verb: str, *words: object) -> list[str]:
        return [sys.executable, "-B", str(CLIENTS), verb, self.device, *map(str, words)]

    def answers(self, verb: str, *words: object) -> Iterator[Any]:
        """Yields each JSON object when a client prints it. Ignores other lines, from libraries."""
        client = self.start(verb, *words)
        try:
            assert client.process.stdout is not None
            for line in client.process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            client.end()
        finally:
            client.kill()

    def client(self, verb: str, *words: object) -> Any:
        """Returns the last JSON object that a client prints."""
        answers = list(self.answers(verb, *words))
        check(bool(answers), f"a client: {verb}: no answer")
        return answers[-1]

    def start(self, verb: str, *words: object) -> Client:
        return Client(self.client_command(verb, *words), self.own)

    def start_program(self, *words: object) -> Program:
        return Program([str(self.places.gpu), *map(str, words)])


class Client:
    """A client that runs during the step and prints lines. `own` is a directory for its errors."""

    def __init__(self, command: list[str], own: Path) -> None:
        self.errors = tempfile.TemporaryFile(dir=own)  # a full pipe would block the client
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True)
        self.pid = self.process.pid

    def ended(self) -> Failed:
        """Returns an exception with the status and the last line of the client."""
        status = self.process.wait()
        self.errors.seek(0)
        errors = self.errors.read().decode(errors="replace").strip() or "no output"
        return Failed(f"a client: status {status}: {errors.splitlines()[-1]}")

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise self.ended()
        return line

    def wait_for_round(self) -> None:
        """Waits until a reader has read everything again from the start without a difference."""
        now = time.monotonic()
        while json.loads(self.line())["begun"] < now:
            pass

    def end(self) -> None:
        """Closes the standard input of the client, which ends a reader. Raises Failed on an error."""
        self.process.communicate()
        if self.process.returncode != 0:
            raise self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()


class Program:
    """stfs-gpu that runs during the step and may fail."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def is_running(self) -> bool:
        return self.process.poll() is None

    def outcome(self) -> tuple[int, str]:
        _, errors = self.process.communicate()
        return self.process.returncode, errors.strip()


class Holder:
    """A holder in the foreground, at the socket of the step."""

    def __init__(self, step: Step, *options: object) -> None:
        self.step = step
        self.process = subprocess.Popen(
            [str(step.places.gpu), "holder", *map(str, options)], stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        step.wait_until("the holder answers", self.answers)

    def answers(self) -> bool:
        if self.process.poll() is not None:
            raise Failed(f"the holder ended with status {self.process.returncode}")
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(os.environ["STFS_GPU_SOCKET"]) == 0

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def copier(self) -> int:
        """Returns the process that copies, or 0."""
        return next(iter(children_of(self.pid)), 0)


def children_of(parent: int) -> list[int]:
    found = []
    for directory in Path("/proc").iterdir():
        try:
            # The name in parentheses may contain any character.
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and int(fields[1]) == parent:
                found.append(int(directory.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def has_open(process: int, file: Path) -> bool:
    try:
        return any(os.path.realpath(link) == str(file.resolve())
                   for link in Path(f"/proc/{process}/fd").iterdir())
    except OSError:  # it has ended
        return False


def memory_of_host(key: str) -> int:
    """Returns the bytes in a line of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def kill(pid: int) -> None:
    if pid <= 0:  # kill(2) would signal many processes
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Failed(otherwise)
