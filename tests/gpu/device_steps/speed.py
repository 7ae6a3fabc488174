"""Steps that measure, and compare each time with the limit of the same machine in the same run."""

from __future__ import annotations

import importlib.util
import statistics
import time
from pathlib import Path

import checkpoints
from checkpoints import GIB, MIB
from correct import need
from house import Holder, Skipped, Step


def model(step: Step) -> Path:
    """Writes a checkpoint like a model's, and reads it into the page cache."""
    path = step.shared / "model.safetensors"
    if not path.exists():  # smaller if less memory is free
        total = 24 * MIB
        if not step.is_small:
            total = min(4 * GIB, step.device_left() // 2, step.memory_left() // 3,
                        step.disk_left() // 2)
        checkpoints.write(path, checkpoints.like_a_model(total))
    checkpoints.warm(path)
    return path


def stages(step: Step) -> None:
    """Measures the stages of a load and a map in a new process."""
    if step.device == "cpu":
        raise Skipped("host memory has no driver")
    for found in step.answers("stages", step.size(GIB, 8 * MIB)):
        size = found.pop("bytes")
        for name, seconds in found.items():
            step.measured(name, seconds * 1000, "ms", note=f"{size >> 20} MiB")


def ceilings(step: Step) -> None:
    """Measures plain copies with one and with eight threads."""
    if step.device == "cpu":
        raise Skipped("host memory has no pinned memory")
    size = step.size(8 * GIB, 64 * MIB)
    for name, rate in step.client("ceilings", size, model(step)).items():
        step.measured(name, rate, "GB/s", note=f"{size >> 20} MiB")


def load_rate(step: Step, *words: object) -> tuple[float, str]:
    """Loads through the holder. Returns the rate in GB/s that the command reports."""
    found = step.load(*words)
    step.gpu("evict", "--all")
    return (found["copied_bytes"] / found["seconds"] / 1e9,
            f"{found['copied_bytes'] >> 20} MiB in {found['seconds']:.2f} s")


def timed_load(step: Step, path: Path, what: str, ceiling: float | None = None) -> None:
    rate, note = load_rate(step, path)
    step.measured(what, rate, "GB/s", ceiling, note)


def plain_copy(step: Step, path: Path) -> tuple[str, float]:
    """Returns the fastest copy of these bytes without stfs, and its rate in GB/s."""
    size = min(path.stat().st_size, 4 * GIB)
    if step.device == "cpu":
        return "page cache to host memory, 8 threads", step.client("plain", size, path)["rate"]
    name = "pinned to device, 8 threads"
    return name, step.client("ceilings", size, path)[name]


def warm_load(step: Step, path: Path) -> float:
    """Alternates loads by a running copier with plain copies. Returns the ceiling in GB/s."""
    rates, ceilings = [], []
    with Holder(step):
        load_rate(step, path)  # starts the copier
        for _ in range(step.size(3, 1)):
            rates.append(load_rate(step, path)[0])
            name, ceiling = plain_copy(step, path)
            ceilings.append(ceiling)
    ceiling = statistics.median(ceilings)
    step.measured("load, warm", statistics.median(rates), "GB/s", ceiling,
                  f"{path.stat().st_size >> 20} MiB; the ceiling: {name}; each a median of "
                  f"{len(rates)}")
    return ceiling


def plain_read(path: Path) -> float:
    begin = time.perf_counter()
    checkpoints.warm(path)
    return path.stat().st_size / (time.perf_counter() - begin) / 1e9


def load(step: Step) -> None:
    """Loads 4 GiB from the page cache and from the disk."""
    path = model(step)
    bus = warm_load(step, path)
    with Holder(step):
        timed_load(step, path, "the first load of a holder, warm", bus)
        timed_load(step, path, "the second load, warm", bus)
        checkpoints.cool(path)
        ceiling = plain_read(path)
        checkpoints.cool(path)
        timed_load(step, path, "load, cold", ceiling)


def load_large(step: Step) -> None:
    """Loads 32 GiB from the page cache, and from the disk if it is fast."""
    total = 48 * MIB
    if not step.is_small:
        total = min(32 * GIB, step.device_left() * 3 // 4, step.memory_left() // 2)
    sparse = checkpoints.write_sparse(step.own / "large.safetensors",
                                      checkpoints.like_a_model(total))
    warm_load(step, sparse)
    sparse.unlink()
    begin = time.perf_counter()
    probe = checkpoints.write(step.own / "probe.safetensors", [step.size(GIB, MIB)])
    checkpoints.cool(probe)
    rate = probe.stat().st_size / (time.perf_counter() - begin)
    ceiling = plain_read(probe)
    if total > step.disk_left() * 3 // 4 or total / rate > 20:
        step.row("load, cold", "skipped", f"the disk writes {rate / 1e6:.0f} MB/s and has "
                 f"{step.disk_left() >> 20} MiB left")
        return
    path = checkpoints.write(step.own / "large-cold.safetensors", checkpoints.like_a_model(total))
    checkpoints.cool(path)
    with Holder(step):
        timed_load(step, path, "load, cold", ceiling)


def with_torch(step: Step) -> str:
    """Returns "with" if PyTorch is installed and can use the device. Before DLPack 1.0 it cannot use
    read-only host memory."""
    is_installed = importlib.util.find_spec("torch") is not None
    return "with" if is_installed and step.device != "cpu" and not step.is_fake else "without"


def loaders(step: Step) -> None:
    """Loads the same file with stfs and with other loaders, each in a new process."""
    path = model(step)
    size = path.stat().st_size / 1e9
    bus = warm_load(step, path)
    with Holder(step):
        for _ in range(2):  # the first load starts the copier
            found = step.client("rate", path, "stfs", with_torch(step))
            step.gpu("evict", "--all")
    ours = size / found["seconds"]
    mib = f"{path.stat().st_size >> 20} MiB"
    step.measured("stfs", ours, "GB/s", bus, f"{mib}; {with_torch(step)} PyTorch")
    for name, library in (("load_file", "safetensors"), ("safe_open", "safetensors"),
                          ("fastsafetensors", "fastsafetensors")):
        try:
            need(step, "torch")
            need(step, library)
            found = step.client("rate", path, name, "with")
            rate = size / found["seconds"]
            step.measured(name, rate, "GB/s", bus, f"{mib}; {library} {found['version']}; "
                          f"stfs is {ours / rate:.1f} times as fast")
        except Skipped as why:
            step.row(name, "skipped", str(why))
        except Exception as why:  # the other loaders still run
            step.row(name, "skipped", f"it fails: {why}")


def acquire(step: Step) -> None:
    """Acquires 1, 100 and 1,000 resident tensors."""
    path = checkpoints.write(step.own / "many.safetensors", [4096] * 1000)
    with Holder(step):
        step.load(path)
        for count, seconds in step.client("acquire", path, 1, 100, 1000).items():
            step.measured(f"{count} tensors", seconds * 1000, "ms")


def start(step: Step) -> None:
    """Measures the time from the start of a command to its first tensor, with PyTorch if possible."""
    path = model(step)
    name = "layers.1.weight"
    how = with_torch(step)

    def seconds(*words: object) -> float:
        begin = time.perf_counter()
        step.client("first", *words, how)
        return time.perf_counter() - begin

    seconds("", "")  # reads the files of Python and PyTorch into the page cache
    ceiling = seconds("", "")
    with Holder(step):
        cold, resident = seconds(path, name), seconds(path, name)
    step.measured("without a tensor", ceiling, "s", note=f"{how} PyTorch")
    step.measured("not resident", cold, "s", ceiling)
    step.measured("resident", resident, "s", ceiling)
