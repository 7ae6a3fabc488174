"""Steps that kill processes. Processes that use tensors must continue to read the right bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator

import checkpoints
from checkpoints import MIB
from correct import driver_state, positions
from house import Client, Failed, Holder, Skipped, Step, check, has_open, kill
from speed import model


@contextlib.contextmanager
def readers(step: Step, path: Path) -> Iterator[list[Client]]:
    """Two processes that read every byte again and again. At the end both must still be reading."""
    both = [step.start("read", path) for _ in range(2)]
    try:
        for one in both:
            one.wait_for_round()
        yield both
        for one in both:
            one.wait_for_round()
        for one in both:
            one.end()
    finally:
        for one in both:
            one.kill()


def small_positions(step: Step) -> Path:
    return positions(step, 64 * MIB, 5 * MIB)


def holder_killed(step: Step) -> None:
    """Kills the holder. Processes keep their tensors, and the next holder loads them again."""
    path = small_positions(step)
    with Holder(step) as first:
        step.load(path)
        with readers(step, path) as both:
            first.kill()
            for one in both:
                one.wait_for_round()
            step.row("readers continue", note="two, each with every byte compared")
            with Holder(step):
                check(step.labels() == [], "a new holder lists tensors")
                step.load("--verify", path)
                step.client("compare", path)
                step.row("the next holder loads")


def copier_killed(step: Step) -> None:
    """Kills the copier during a load. The load fails with one line, and the next load succeeds."""
    path = small_positions(step)
    other = model(step)
    with Holder(step) as holder:
        step.load(path)
        with readers(step, path):
            loading = step.start_program("load", "--device", step.device, "--verify", other)
            step.wait_until("the copier reads", lambda: not loading.is_running() or
                            has_open(holder.copier(), other))
            kill(holder.copier())
            status, errors = loading.outcome()
            check(status == 5 and "\n" not in errors or status == 0,
                  f"the load ended with status {status}: {errors}")
            step.row("the load of a killed copier", "ok" if status else "skipped",
                     errors if status else "the load ended before the copier was killed")
            step.load("--verify", other)
            step.client("compare", other)
            step.row("the next load")
        step.row("readers continue")


def client_killed(step: Step) -> None:
    """Kills a client. Its lease ends, and the others continue to read."""
    path = small_positions(step)
    with Holder(step):
        step.load(path)
        with readers(step, path):
            client = step.start("hold", path)
            client.line()

            def has_lease() -> bool:
                return any(client.pid in row["users"] for row in step.gpu_json("ls"))
            check(has_lease(), "ls does not show the client")
            client.kill()
            step.wait_until("the lease of a killed client ends", lambda: not has_lease())
            step.row("its lease ends")
        step.row("readers continue")
        step.wait_until("no lease is left",
                        lambda: not any(row["users"] for row in step.gpu_json("ls")))
        step.gpu("evict", "--all")
        step.row("evict afterwards")


def without_copier(step: Step) -> None:
    """Maps tensors after the copier has exited or was killed and no process has a context. Only
    descriptors keep the memory."""
    path = small_positions(step)
    with Holder(step) as holder:
        step.load(path)
        kill(holder.copier())
        step.wait_until("the copier has ended", lambda: holder.copier() == 0)
        step.client("compare", path)
        step.row("a map after the copier was killed")
    with Holder(step, "--copier-idle", 0) as holder:
        step.load(path)
        step.wait_until("the copier has ended", lambda: holder.copier() == 0)
        step.client("compare", path)
        step.row("a map after the copier exited",
                 note=driver_state() if step.device != "cpu" else "")
        step.load(checkpoints.write(step.own / "next.safetensors", [MIB]))
        step.row("the next load")


def memory_freed(step: Step) -> None:
    """Checks that all memory of the device is free again at the end."""
    if step.device == "cpu":
        raise Skipped("other processes use host memory too")
    path = positions(step)
    total = path.stat().st_size
    before = step.device_left()
    with Holder(step):
        step.load(path)
        held = step.device_left()
        check(before - held > total // 2, f"{total} bytes took {before - held}")
        with readers(step, path):
            pass
        step.gpu("evict", "--all")
        step.wait_until("evict frees the memory",  # the holder and its copier still run
                        lambda: step.device_left() - held > total * 9 // 10)
    spare = min(64 * MIB, total // 10)  # other processes may use a little
    try:
        step.wait_until("the memory is free again", lambda: step.device_left() >= before - spare, 10)
    except Failed:
        raise Failed(f"{step.device_left()} bytes free, {before} before") from None
    step.row("free memory", note=f"{before} bytes before, {held} in use, {step.device_left()} after")
