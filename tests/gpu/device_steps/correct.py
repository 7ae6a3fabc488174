"""Steps that compare the bytes on the device with the source, in several programs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import checkpoints
from checkpoints import MIB
from house import Failed, Holder, Skipped, Step, check, memory_of_host

LIBRARIES = ("torch", "cupy", "jax", "safetensors", "fastsafetensors", "numpy")
# Types that a library must accept on a GPU. It may refuse others.
REQUIRED = {"torch": {"F32", "F16", "BF16"}, "cupy": {"F32", "F16"}, "jax": {"F32", "F16", "BF16"}}


def version_of(module: str) -> str:
    if importlib.util.find_spec(module) is None:
        return "not installed"
    distributions = importlib.metadata.distributions()
    for distribution in distributions:
        name = (distribution.metadata["Name"] or "").lower()
        if name == module or name.startswith(f"{module}-cuda"):
            return distribution.version
    return "installed"


def driver_state() -> str:
    """Returns the persistence mode, driver and name of each GPU."""
    if shutil.which("nvidia-smi") is None:
        return "unknown: no nvidia-smi"
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=persistence_mode,driver_version,name",
                                "--format=csv,noheader"], capture_output=True, text=True, timeout=8)
    except subprocess.TimeoutExpired:
        return "unknown: nvidia-smi does not answer"
    return "; ".join((asked.stdout.strip() or asked.stderr.strip()).splitlines())


def processors() -> str:
    models = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]
    return f"{os.cpu_count()}, {models[0] if models else 'unknown'}"


def room(step: Step) -> str:
    file_system = step.run("stat", "-f", "-c", "%T", step.shared).strip()
    return (f"memory {step.memory_left() >> 20} of {memory_of_host('MemTotal') >> 20} MiB, "
            f"disk {step.disk_left() >> 20} MiB ({file_system})")


def inform(step: Step, name: str, note: Callable[[], str]) -> None:
    """Writes a row. If it fails, the step continues."""
    try:
        step.row(name, note=note())
    except Exception as error:
        step.row(name, "skipped", f"{type(error).__name__}: {error}")


def machine(step: Step) -> None:
    """Checks the programs, the driver and the device. Without them no other step runs."""
    check(not step.places.missing(), f"missing: {', '.join(step.places.missing())}")
    step.row("stfs", note=", ".join(step.gpu("--version").splitlines()))
    step.row("kernel", note=f"{platform.release()} {platform.machine()}, glibc "
             f"{platform.libc_ver()[1]}, Python {platform.python_version()}")
    inform(step, "processors", processors)
    inform(step, "free", lambda: room(step))
    inform(step, "libraries", lambda: ", ".join(f"{name} {version_of(name)}" for name in LIBRARIES))
    try:
        for row in step.gpu_json("doctor"):
            step.row(f"doctor: {row['subject']}", note=row["finding"])
    except Exception as error:
        step.row("doctor", "skipped", f"{type(error).__name__}: {error}")
    if step.device == "cpu":
        return
    devices = [row for row in step.gpu_json("devices") if row["device"] == step.device]
    check(bool(devices), f"there is no device {step.device}")
    step.row("device", note=", ".join(f"{key} {value}" for key, value in devices[0].items()))
    inform(step, "persistence mode, driver", driver_state)
    found = step.client("free")
    step.row("a context", note=f"CUDA {found['version']}, {found['bytes'] >> 20} MiB free beside it")


def positions(step: Step, full: int = 1024 * MIB, small: int = 36 * MIB) -> Path:
    """Writes a checkpoint with a tensor that gets a separate segment, and many that share one."""
    path = step.shared / f"positions-{full >> 20}.safetensors"
    if path.exists():  # it may be smaller, because less memory was free
        return path
    total = small
    if not step.is_small:
        total = min(full, step.device_left() // 4, step.memory_left() // 8)
    sizes = [max(total - 3 * MIB, MIB), MIB, MIB + 2, 2, MIB // 2 + 6, 4096]
    return checkpoints.write(path, sizes)


def loaded(step: Step) -> None:
    """load, ls, get, pin, evict; and every byte on the device."""
    path = positions(step)
    total = sum(tensor.size for tensor in checkpoints.tensors_of(path))
    step.run(step.places.info, "check", path)
    with Holder(step):
        answer = step.load("--verify", path)
        check(answer["copied_bytes"] == total and answer["verified"], f"load printed {answer}")
        step.row("load --verify", note=f"{total} bytes")
        found = step.client("compare", path)
        check(found["bytes"] == total, f"{found} compared instead of {total} bytes")
        step.row("every byte", note=f"{found['tensors']} tensors, read back by a separate process")
        check(step.load(path)["copied_bytes"] == 0, "the second load copied again")
        step.row("the second load copies nothing")
        rows = step.gpu_json("get", "--device", step.device, path)
        check([row["label"] for row in rows] == step.labels(), "get and ls differ")
        check(all(Path(row["path"]).is_symlink() for row in rows if row["bytes"]),
              "get names a descriptor that the holder does not have")
        step.row("get")
        kept = f"{path}::layers.1.weight"
        step.gpu("pin", kept)
        step.gpu("evict", "--all")
        check(step.labels() == [kept], f"ls shows {step.labels()} after evict, with one pinned")
        step.gpu("unpin", kept)
        step.gpu("evict", "--all")
        check(step.labels() == [], "a tensor is resident after evict --all")
        step.row("pin, unpin, evict")


def converted(step: Step) -> None:
    """Compares each value of --as f32, f16 and bf16 with Python's arithmetic."""
    values = checkpoints.many_values(step.size(64 * 1024, 4096))
    path = checkpoints.write_values(step.own / "values.safetensors", {
        dtype: (dtype, [len(values)], values) for dtype in ("F32", "F16", "BF16")})
    with Holder(step):
        step.load("--as", "f16", path)
        warnings = step.warnings
        step.client("convert", path, "f32", "f16", "bf16")
        note = f"from F32, F16, BF16; {len(values)} values each"
        # A real GPU must run the kernels. The host computes equal values, so its warning is checked.
        is_by_host = step.device != "cpu" and "converted on the host" in warnings
        step.checked("--as f32, f16, bf16", step.is_fake or not is_by_host, warnings,
                     f"{note}; {warnings}" if warnings else note)


def sharded(step: Step) -> None:
    """Loads shards by rows and by columns."""
    rows, columns = 96, step.size(6 * 4096, 6 * 128)
    sizes = [rows * columns * 2]
    base = checkpoints.write(step.own / "flat.safetensors", sizes)
    data = b"".join(checkpoints.pieces(base, checkpoints.tensors_of(base)[0]))
    path = step.own / "matrix.safetensors"
    path.write_bytes(checkpoints.header([("w", "BF16", [rows, columns], sizes[0])]) + data)
    with Holder(step):
        step.load("--shard", "1/2@1", path)
        step.client("shard", path, *[f"{rank}/{world}@{dimension}" for dimension in (0, 1)
                                     for world in (2, 3) for rank in range(world)])
        step.row("--shard by rows and columns", note="halves and thirds")


def descriptors(step: Step) -> None:
    """Acquires more segments than the limit of open files."""
    count, soft, hard = 1500, 1024, 1024
    if step.is_small:  # a hard limit must leave room for the 64 descriptors of a message
        count, soft, hard = (34, 30, 0) if step.is_fake else (120, 60, 100)
    path = checkpoints.write(step.own / "many.safetensors", [512] * count)
    with Holder(step):
        step.client("one_by_one", path)
        segments = {row["path"] for row in step.gpu_json("get", "--device", step.device, path)}
        check(len(segments) == count, f"{len(segments)} segments instead of {count}")
        step.row("segments", note=f"{count}, one for each tensor")
        step.client("compare", path, f"soft={soft}")
        step.row(f"acquire under ulimit -S -n {soft}")
        if step.is_fake:
            step.row("acquire under a hard limit", "skipped",
                     "a mapping of the fake driver has a descriptor")
            return
        step.client("compare", path, f"soft={soft}", f"hard={hard}")
        step.row(f"acquire under ulimit -n {hard}")


def two_clients(step: Step) -> None:
    """Two processes load the same tensors at once. Each tensor is resident once, and both read it."""
    path = positions(step)
    with Holder(step):
        both = [step.start("compare", path, "load=1") for _ in range(2)]
        for client in both:
            client.end()
        labels = step.labels()
        check(len(labels) == len(set(labels)) == len(checkpoints.tensors_of(path)),
              f"ls shows {labels}")
        check(not any(row["users"] for row in step.gpu_json("ls")), "a lease is left")
        step.row("two clients at once")


def need(step: Step, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise Skipped(f"{library} is not installed")
    if step.is_fake:
        raise Skipped(f"{library} would use libcuda.so.1 instead of STFS_GPU_DRIVER")


def check_client(step: Step, library: str, seen: dict[str, Any]) -> None:
    """Writes a row for the tensor of one type that a library has read."""
    dtype = seen["row"]
    if "refused" in seen:
        must = step.device != "cpu" and dtype in REQUIRED[library]
        step.row(dtype, "failed" if must else "skipped", f"{library} refuses: {seen['refused']}")
    elif seen["sum"] != checkpoints.SUM:
        step.row(dtype, "failed", f"the sum is {seen['sum']} instead of {checkpoints.SUM}")
    else:
        step.checked(dtype, seen["same_address"], f"{library} has another address",
                     "address and sum")


def seen_by(step: Step, library: str) -> None:
    need(step, library)
    begin = time.perf_counter()
    step.run(sys.executable, "-c", f"import {library}")
    step.measured(f"import {library}", time.perf_counter() - begin, "s")
    path = checkpoints.write_sums(step.own / "sums.safetensors")
    with Holder(step):
        step.load(path)
        count = 0
        for seen in step.answers(library, path):
            check_client(step, library, seen)
            count += 1
        check(count == len(checkpoints.SUM_TYPES), f"{library} saw {count} types")


def seen_by_torch(step: Step) -> None:
    """PyTorch gets the same address and sum for F32, F16, BF16 and FP8."""
    seen_by(step, "torch")


def seen_by_cupy(step: Step) -> None:
    """CuPy gets the same address and sums."""
    seen_by(step, "cupy")


def seen_by_jax(step: Step) -> None:
    """JAX gets the same address and sums."""
    seen_by(step, "jax")


def dropped(step: Step) -> None:
    """Releases a tensor while the device reads it."""
    if step.device == "cpu":
        raise Skipped("host memory has no streams")
    path = positions(step)
    with Holder(step):
        step.load(path)
        found = step.client("drop", path)
        step.row("under copies", note=f"{found['copies']} of {found['bytes']} bytes")
        try:
            need(step, "torch")
        except Skipped as why:
            step.row("under a kernel of PyTorch", "skipped", str(why))
            return
        sums = checkpoints.write_sums(step.own / "sums.safetensors")
        step.load(sums)
        found = step.client("torch_drop", sums)
        check(found["sum"] == checkpoints.SUM, "the kernel's sum is wrong")
        check(found["pending"], "the kernel had ended before the tensor was dropped")
        step.row("under a kernel of PyTorch")


def stays(step: Step, name: str, path: Path) -> None:
    """Writes a row: the bytes on the device still equal the source."""
    try:
        step.client("compare", path)
    except Failed as why:
        step.row(name, "failed", str(why))
    else:
        step.row(name)


def stored(step: Step) -> None:
    """A store into a tensor faults in the process that stores, and changes nothing."""
    path = checkpoints.write_sums(step.own / "sums.safetensors")
    with Holder(step):
        step.load(path)
        if step.device == "cpu":
            done = subprocess.run(step.client_command("store", path, "F32"), capture_output=True)
            step.checked("by a process", done.returncode == -signal.SIGSEGV,
                         f"a store ended with {done.returncode}", "SIGSEGV")
        else:
            refused = step.client("store", path, "F32")["refused"]
            step.checked("by the driver", refused != 0,
                         "the driver stored into read-only memory", f"CUresult {refused}")
        stays(step, "the bytes are as they were", path)
        if step.device == "cpu":
            step.row("by a kernel of PyTorch", "skipped", "only on a GPU")
            return
        try:
            need(step, "torch")
        except Skipped as why:
            step.row("by a kernel of PyTorch", "skipped", str(why))
            return
        refused = step.client("torch_store", path)["refused"]
        step.checked("by a kernel of PyTorch", refused != "",
                     "PyTorch stored into read-only memory", refused)
        stays(step, "the bytes are as they were, again", path)
