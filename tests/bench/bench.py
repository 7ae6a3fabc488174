#!/usr/bin/env python3
"""Measures stfs and compares it with limits and peers. scripts/bench runs this; docs/BENCHMARKS.md explains the rows.

Every figure is a ratio of two measurements of the same run, which alternate. A row has the median, the minimum and the
maximum of its rounds. The table goes to standard output, and all figures go to a JSON file. The exit status only shows
whether the measurements were possible, not whether targets were met.
"""
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import chart
import deltas
import layers
import library
import quantised
import remote
import statistics_rows
import torch_file

try:
    import numpy
except ImportError:
    numpy = None

MIB = 1 << 20
PROCESSORS = len(os.sched_getaffinity(0))


class Size:
    """The sizes of the measurements."""

    def __init__(self, quick):
        self.is_quick = quick
        self.rounds = 2 if quick else 7
        self.scale = 0.1 if quick else 0.6  # share of a model of 7 billion parameters: 0.4 GB, 4.9 GB
        self.sample = 64 * MIB if quick else 1024 * MIB  # bytes that one measurement reads
        self.small = 2_000 if quick else 100_000  # tensors of 1 KiB
        self.wide = 20_000 if quick else 760_000  # tensors of one byte
        self.random_reads = 2_000 if quick else 20_000


# --------------------------------------------------------------------------------------------- rows


class Table:
    """The rows, each with the ratio of a subject to a limit or a peer, and a target."""

    def __init__(self, rounds, only):
        self.rounds = rounds
        self.only = re.compile(only or "")
        self.rows = []

    def wants(self, work):
        return self.only.search(work) is not None

    def add(self, work, peer, target, ratios, **details):
        """Adds a row. `target` is text like ">= 0.9" or "<= 2", or "" if the row has no target."""
        row = {"work": work, "peer": peer, "target": target, "median": statistics.median(ratios), "min": min(ratios),
               "max": max(ratios), "rounds": len(ratios), **details}
        row["met"] = meets(row["median"], target)
        self.rows.append(row)
        say(f"{work} / {peer}: {row['median']:.2f} ({row['min']:.2f} to {row['max']:.2f}) {target}")

    def skip(self, work, peer, why):
        self.rows.append({"work": work, "peer": peer, "skipped": why})
        say(f"{work} / {peer}: skipped: {why}")

    def speed(self, work, peer, target, subject, limit, prepare=None, factor=1.0):
        """Adds the speed of `subject` divided by the speed of `limit`. Both are functions that return seconds. `factor`
        is the number of bytes of the subject per byte of the limit."""
        if self.wants(work):
            a, b = self._alternate(subject, limit, prepare)
            self.add(work, peer, target, [factor * y / x for x, y in zip(a, b)], seconds=statistics.median(a),
                     peer_seconds=statistics.median(b))

    def time(self, work, peer, target, subject, limit, prepare=None):
        """Adds the time of `subject` divided by the time of `limit`."""
        if self.wants(work):
            a, b = self._alternate(subject, limit, prepare)
            self.add(work, peer, target, [x / y for x, y in zip(a, b)], seconds=statistics.median(a),
                     peer_seconds=statistics.median(b))

    def _alternate(self, subject, limit, prepare):
        seconds = {subject: [], limit: []}
        for i in range(self.rounds + 1):
            for action in (subject, limit) if i % 2 else (limit, subject):
                if prepare:
                    prepare()
                seconds[action].append(action())
        return seconds[subject][1:], seconds[limit][1:]  # the first round warms up

    def markdown(self):
        lines = ["| work | limit or peer | target | median | least to greatest | met |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            if "skipped" in row:
                lines.append(f"| {row['work']} | {row['peer']} | | skipped: {row['skipped']} | | |")
                continue
            target = row["target"].replace(">=", "≥").replace("<=", "≤")
            met = "" if row["met"] is None else "yes" if row["met"] else "no"
            lines.append(f"| {row['work']} | {row['peer']} | {target} | {row['median']:.2f} | "
                         f"{row['min']:.2f} to {row['max']:.2f} | {met} |")
        return "\n".join(lines)


def meets(value, target):
    if not target:
        return None
    relation, bound = target.split()
    return value >= float(bound) if relation == ">=" else value <= float(bound)


def say(text):
    print(text, file=sys.stderr, flush=True)


# --------------------------------------------------------------------------- processes and mounts


def run(*command, **options):
    """Runs a command, discards its output, and returns its seconds."""
    begin = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, **options)
    return time.perf_counter() - begin


class Programs:
    def __init__(self, build):
        self.stfs = build / "fs/stfs"
        self.info = build / "tools/stfs-info"
        self.make_checkpoint = build / "tests/support/make_checkpoint"
        self._measure = build / "tests/bench/stfs_bench_measure"
        self.decoders = build / "tests/bench/stfs_bench_decoders"

    def measure(self, verb, ranges, *options):
        """Runs a loop of stfs_bench_measure over `ranges`, which are (offset, length, path). Returns its number."""
        lines = "".join(f"{offset} {length} {path}\n" for offset, length, path in ranges)
        words = [str(self._measure), verb, *map(str, options)]
        out = subprocess.run(words, input=lines, text=True, check=True, stdout=subprocess.PIPE).stdout
        return int(out)

    def seconds(self, *arguments):
        return self.measure(*arguments) / 1e9

    @contextlib.contextmanager
    def mounted(self, source, mountpoint, *options):
        mountpoint.mkdir(exist_ok=True)
        run(self.stfs, *options, source, mountpoint)
        try:
            yield mountpoint
        finally:
            self.unmount(mountpoint)

    def unmount(self, mountpoint):
        """Unmounts, and waits until the daemon and its mapping of the source have ended."""
        daemon = os.pidfd_open(int(self.daemon_of(mountpoint).name))
        try:
            subprocess.run([self.stfs, "-u", mountpoint], check=True)
            ended = select.poll()
            ended.register(daemon, select.POLLIN)
            if not ended.poll(20_000):
                raise RuntimeError(f"the daemon of {mountpoint} does not end")
        finally:
            os.close(daemon)

    def daemon_of(self, mountpoint):
        """Returns the /proc directory of the process that serves a mount."""
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (entry / "exe").resolve() == self.stfs.resolve():
                    if str(mountpoint).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                        return entry
        raise RuntimeError(f"no process serves {mountpoint}")


def whole(path):
    return (0, os.stat(path).st_size, path)


# ------------------------------------------------------------------------------------- the sections


class Bench:
    def __init__(self, programs, table, size, directory):
        self.programs = programs
        self.table = table
        self.size = size
        self.directory = directory

    def checkpoint(self, preset, *options):
        """Makes a checkpoint, or reuses the checkpoint of an earlier run. Returns its path."""
        path = self.directory / "-".join([preset, *options]).replace("--", "")
        if not path.exists():
            partial = path.with_suffix(".partial")
            run(self.programs.make_checkpoint, partial, "--preset", preset, *options)
            partial.rename(path)
        return path

    def mounted(self, source, *options):
        return self.programs.mounted(source, self.directory / "mnt", *options)

    def sample(self, mount):
        """Returns the ranges in the mount and in the source of the first tensors that fill one measurement."""
        in_mount, in_source, total = [], [], 0
        for tensor in json.loads((mount / ".stfs/tensors.json").read_text()):
            if total >= self.size.sample:
                break
            in_mount.append((0, tensor["bytes"], mount / tensor["path"]))
            in_source.append((tensor["offset"], tensor["bytes"], tensor["source"]))
            total += tensor["bytes"]
        return in_mount, in_source

    def all(self):
        self.decoders()
        self.big = self.checkpoint("7b", "--scale", str(self.size.scale))
        with self.mounted(self.big) as mount:
            self.reading(mount)
            self.against_squashfuse(mount)
            self.views(mount)
        self.direct()
        self.cold()
        self.hash()
        self.caches()
        self.small_tensors()
        self.mounting()

    def decoders(self):
        """Measures the decoders without a mount. STFS_GGML is the path of ggml's library."""
        work, peer = "decode {} to float32, one core", "ggml's reference loop"
        names = ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4", "F16", "BF16", "F32-to-F16", "F32-to-BF16"]
        wanted = {name: work.format(name) if "-" not in name else name.replace("F32-to-", "round float32 to ") + ", one core"
                  for name in names}
        wanted = {name: row for name, row in wanted.items() if self.table.wants(row)}
        if not wanted:
            return
        out = subprocess.run([self.programs.decoders, "--rounds", str(self.size.rounds)], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
        for name, _, ggml, *ratios in (line.split() for line in out.splitlines()[1:]):
            if name not in wanted:
                continue
            if ggml == "-":
                self.table.skip(wanted[name], peer, "STFS_GGML names no library of ggml")
                continue
            best, least, greatest = map(float, ratios)
            target = ">= 2" if name in names[:7] else ""
            self.table.add(wanted[name], peer, target, [least, best, greatest])

    def reading(self, mount):
        """Measures reads after dropping the cached pages of the mount. This approximates a new mount; `direct` measures
        real new mounts."""
        table, seconds, measure = self.table, self.programs.seconds, self.programs.measure
        files, source = self.sample(mount)
        count = self.size.random_reads
        seconds("read", source)

        def fresh():
            measure("drop", files)

        seconds("read", files)
        table.speed("sequential 1 MiB reads, in the mount's cache", "`pread` of the source", ">= 1.0",
                    lambda: seconds("read", files), lambda: seconds("read", source))
        table.speed("random 4 KiB reads, in the mount's cache", "`pread` of the source", ">= 0.9",
                    lambda: seconds("random", files, "--block", 4096, "--count", 10 * count),
                    lambda: seconds("random", source, "--block", 4096, "--count", 10 * count))
        table.speed("first touch, 1 MiB reads", "copy of the same bytes into tmpfs", ">= 0.8",
                    lambda: seconds("read", files), lambda: seconds("tmpfs", source), fresh)
        table.speed("first touch, `mmap`", "`mmap` of the source", ">= 0.5",
                    lambda: seconds("map", files), lambda: seconds("map", source), fresh)

    def against_squashfuse(self, mount):
        table, seconds, measure = self.table, self.programs.seconds, self.programs.measure
        peer = "`squashfuse_ll`, uncompressed image of the same tensors"
        rows = [("first touch, 1 MiB reads", ">= 3", ("read",)),
                ("first touch, `mmap`", ">= 3", ("map",)),
                ("first touch, 4 KiB random reads", ">= 1.5",
                 ("random", "--block", 4096, "--count", self.size.random_reads))]
        if not any(table.wants(work) for work, _, _ in rows):
            return
        missing = [name for name in ("squashfuse_ll", "mksquashfs") if not shutil.which(name)]
        if missing:
            for work, _, _ in rows:
                table.skip(work, peer, "no " + " and no ".join(missing))
            return
        files, _ = self.sample(mount)
        image = self.directory / "image.squashfs"
        image.unlink(missing_ok=True)
        run("mksquashfs", *[path for _, _, path in files], image, "-noI", "-noD", "-noF", "-noX", "-quiet",
            "-no-progress")
        squashed = self.directory / "squash"
        squashed.mkdir(exist_ok=True)
        run("squashfuse_ll", image, squashed)
        try:
            theirs = [(offset, length, squashed / path.name) for offset, length, path in files]
            seconds("read", [whole(image)])

            def fresh():
                measure("drop", files + theirs)

            for work, target, (verb, *options) in rows:
                table.speed(work, peer, target, lambda: seconds(verb, files, *options),
                            lambda: seconds(verb, theirs, *options), fresh)
        finally:
            run("fusermount3", "-u", squashed)
            image.unlink()

    def views(self, mount):
        table, seconds, measure = self.table, self.programs.seconds, self.programs.measure
        files, source = self.sample(mount)
        control = mount / ".stfs"
        tensors = json.loads((control / "tensors.json").read_text())
        shapes = {mount / tensor["path"]: tensor["shape"] for tensor in tensors}
        npy = [whole(control / "npy" / f"{path.relative_to(mount)}.npy") for _, _, path in files]
        f32 = [whole(control / "f32" / path.relative_to(mount)) for _, _, path in files]
        merged_data = (control / "merged.safetensors").stat().st_size - sum(tensor["bytes"] for tensor in tensors)
        merged = [(merged_data, sum(length for _, length, _ in files), control / "merged.safetensors")]
        matrices = [i for i, (_, _, path) in enumerate(files) if len(shapes[path]) == 2]
        columns = {i: shapes[files[i][2]][1] // 4 for i in matrices}
        slices = [whole(control / "slice" / files[i][2].relative_to(mount) / f":,0:{columns[i]}") for i in matrices]

        def fresh():
            measure("drop", files + npy + f32 + merged + slices)

        def numpy_columns():
            begin = time.perf_counter()
            for i in matrices:
                offset, _, path = source[i]
                matrix = numpy.memmap(path, dtype="<u2", mode="r", offset=offset, shape=tuple(shapes[files[i][2]]))
                matrix[:, : columns[i]].tobytes()
            return time.perf_counter() - begin

        def raw():
            return seconds("read", files)

        table.speed("`npy/`, first touch", "the raw files", ">= 0.9", lambda: seconds("read", npy), raw, fresh)
        table.speed("`merged.safetensors`, first touch", "the raw files", ">= 0.95", lambda: seconds("read", merged),
                    raw, fresh)
        table.speed("`f32/` of bf16, first touch, for each byte that comes out", "the raw files", ">= 0.6",
                    lambda: seconds("read", f32), raw, fresh, factor=2)
        work = "`slice/`, a quarter of the columns, first touch"
        if numpy is None:
            table.skip(work, "NumPy from a memmap of the source", "no NumPy")
        else:
            table.speed(work, "NumPy from a memmap of the source", ">= 1.0", lambda: seconds("read", slices),
                        numpy_columns, fresh)

    def direct(self):
        """Measures reads that bypass the cache of the mount, each through a new mount. Programs that use O_DIRECT read
        large blocks."""
        table, seconds = self.table, self.programs.seconds
        with self.mounted(self.big) as mount:
            files, source = self.sample(mount)
        seconds("read", source)

        def through_mount(options, *arguments):
            with self.mounted(self.big, *options):
                return seconds("read", files, *arguments)

        for readers, target in ((1, ">= 0.6"), (4, ">= 0.8")):
            label = "one reader" if readers == 1 else f"{readers} readers"
            share = ("--readers", readers)
            for work, options, arguments in (
                    ("first touch, `O_DIRECT`, 4 MiB reads", (), ("--direct", "--block", 4 * MIB)),
                    ("first touch, `-o page_cache=direct`, 1 MiB reads", ("-o", "page_cache=direct"), ())):
                table.speed(f"{work}, {label}", "`pread` of the source with as many readers",
                            target if "O_DIRECT" in work else "",
                            lambda: through_mount(options, *arguments, *share),
                            lambda: seconds("read", source, *share))

    def cold(self):
        """Measures reads with cold caches. The pages of the source can be dropped only while no mount maps them."""
        table, seconds, measure = self.table, self.programs.seconds, self.programs.measure
        with self.mounted(self.big) as mount:
            tensors = json.loads((mount / ".stfs/tensors.json").read_text())
        chosen = random.Random(1).sample(tensors, min(64, len(tensors)))
        every = [whole(path) for path in sorted(self.big.glob("*.safetensors"))]
        with self.mounted(self.big) as mount:
            sequential = self.sample(mount)
        picked = ([(0, tensor["bytes"], mount / tensor["path"]) for tensor in chosen],
                  [(tensor["offset"], tensor["bytes"], tensor["source"]) for tensor in chosen])

        def fresh():
            os.sync()
            deadline = time.monotonic() + 20
            left = None
            while left is None or left > 0.02 * sum(length for _, length, _ in every):
                # Pages under readahead cannot be dropped, and no event reports its end.
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{left} bytes of the source stay in memory")
                measure("drop", every)
                left = measure("resident", every)

        def through_mount(files, *options):
            with self.mounted(self.big):
                return seconds("read", files, *options)

        for work, (files, source) in (("cold disk, sequential", sequential), ("cold disk, 64 random tensors", picked)):
            for how, options in (("1 MiB reads", ()), ("`O_DIRECT`, 4 MiB reads", ("--direct", "--block", 4 * MIB))):
                table.speed(f"{work}, {how}", "`cat` of the same ranges of the source", ">= 0.95",
                            lambda: through_mount(files, *options),
                            lambda: seconds("read", source, "--block", 128 * 1024), fresh)

    def hash(self):
        shards = sorted(self.big.glob("*.safetensors"))
        self.table.speed("`stfs-info hash` of the checkpoint", f"`sha256sum` of its files, {PROCESSORS} at a time",
                         ">= 1.5", lambda: run(self.programs.info, "hash", self.big),
                         lambda: run("xargs", "-P", PROCESSORS, "-n", 1, "sha256sum",
                                     input="\n".join(map(str, shards)), text=True))

    def caches(self):
        """Measures the cached bytes per byte of a tensor after one read."""
        table, seconds, measure = self.table, self.programs.seconds, self.programs.measure
        every = [whole(path) for path in self.big.glob("*.safetensors")]
        for option, target in (("page_cache=kernel", ""), ("page_cache=direct", "<= 1.1")):
            work = f"memory in caches after one reading, `-o {option}`"
            if not table.wants(work):
                continue
            measure("drop", every)
            with self.mounted(self.big, "-o", option) as mount:
                files, source = self.sample(mount)
                before = measure("resident", source)
                seconds("read", files)
                # With page_cache=direct a file cannot be mapped, so it has no pages.
                ours = measure("resident", files) if option == "page_cache=kernel" else 0
                held = ours + measure("resident", source) - before
                table.add(work, "the tensor's bytes", target, [held / sum(length for _, length, _ in files)])

    def small_tensors(self):
        table, seconds = self.table, self.programs.seconds
        works = {
            "`ls -l`": lambda where: run("ls", "-l", where),
            "`find`": lambda where: run("find", where),
            "`stat`": lambda where: run("xargs", "-a", names, "stat", "--format=%s", cwd=where),
            "open, read 4 KiB, close": lambda where: seconds(
                "open", [(0, 0, where / name) for name in names.read_text().split()], "--block", 4096),
        }
        if not any(table.wants(f"{work} of {self.size.small} tensors") for work in works):
            return
        source = self.checkpoint("moe", "--tensors", str(self.size.small))
        plain = self.directory / "plain"
        names = self.directory / "names"
        with self.mounted(source) as mount:
            names.write_text("\n".join(sorted(os.listdir(mount))) + "\n")
            if not plain.exists():
                run("cp", "-r", mount, plain.with_suffix(".partial"))
                plain.with_suffix(".partial").rename(plain)
        kind = file_system_of(plain)
        with contextlib.ExitStack() as stack:
            fresh = self.image_of(plain, stack)
            for work, action in works.items():
                name = f"{work} of {self.size.small} tensors"
                if table.wants(name):
                    self.small_row(name, action, source, plain, kind, fresh)

    def small_row(self, name, action, source, plain, kind, fresh):
        """Compares the first and second listing after mounting with an ordinary directory with the same number of files.
        If mounting is permitted, the first listing of that directory follows the mount of an image of it. Otherwise the
        listing comes from the kernel's cache."""
        is_open = name.startswith("open")
        first, again = [], []
        action(plain)
        for _ in range(self.size.rounds):
            cached = [action(plain), 0]
            with self.mounted(source) as mount:
                once = action(mount)
                twice = action(mount)
            cached[1] = action(plain)
            if fresh:
                with fresh() as image:
                    first.append(once / action(image))
            else:
                first.append(once / statistics.mean(cached))
            again.append(twice / statistics.mean(cached))
        peer = f"a directory of as many files on {kind}"
        self.table.add(f"{name}, first time", f"{peer}, {'first time' if fresh else 'cached'}",
                       "<= 3" if is_open else "<= 2", first)
        self.table.add(f"{name}, again", f"{peer}, cached", "<= 3" if is_open else "<= 1.1", again)

    def image_of(self, directory, stack):
        """Returns a function that mounts an ext4 image with the files of `directory`, or None if mounting is not permitted.
        The image stays in the page cache, like the source of stfs."""
        image = self.directory / "plain.ext4"
        where = self.directory / "image"

        @contextlib.contextmanager
        def mounted(mode="ro"):
            run("mount", "-o", f"loop,{mode}", image, where, stderr=subprocess.DEVNULL)
            try:
                yield where / directory.name
            finally:
                run("umount", where)

        where.mkdir(exist_ok=True)
        stack.callback(image.unlink, missing_ok=True)
        count = len(os.listdir(directory))
        try:
            run("mke2fs", "-q", "-F", "-t", "ext4", "-N", count + 1000, image, f"{64 + count * 6 // 1024}M",
                stderr=subprocess.DEVNULL)
            with mounted("rw"):
                run("cp", "-r", directory, where)
            return mounted
        except (OSError, subprocess.CalledProcessError):
            say("no ext4 image can be mounted: the peer of the first time is in the kernel's cache")
            return None

    def gguf_of(self, checkpoint):
        """Writes a GGUF file with the tensors of a checkpoint as bytes. Returns its path and the first tensor."""
        source = next(checkpoint.glob("*.safetensors"))
        with source.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        path = self.directory / "wide.gguf"
        key, end = b"general.alignment", 0
        infos = bytearray()
        names = [name[:63] for name in header]  # the limit of GGUF; the beginnings of the names differ
        for name, tensor in zip(names, header.values()):
            size = tensor["data_offsets"][1] - tensor["data_offsets"][0]
            infos += struct.pack("<Q", len(name)) + name.encode()
            infos += struct.pack("<IqIQ", 1, size, 24, end)  # one dimension, I8
            end += size
        with path.open("wb") as file:
            file.write(b"GGUF" + struct.pack("<IQQQ", 3, len(header), 1, len(key)) + key)
            file.write(struct.pack("<II", 4, 1) + infos + bytes(end))  # the value 1 as a U32
        return path, names[0]

    def mounting(self):
        table, programs = self.table, self.programs
        wide = self.checkpoint("wide", "--tensors", str(self.size.wide))
        mountpoint = self.directory / "mnt"

        def first_byte(source, tensor):
            begin = time.perf_counter()
            with programs.mounted(source, mountpoint):
                with open(mountpoint / tensor, "rb", buffering=0) as file:
                    file.read(1)
                return time.perf_counter() - begin

        for source, what in ((self.big, "7B shards"), (wide, f"{self.size.wide} tensors")):
            work = f"mount to first byte, {what}"
            files = [whole(path) for path in sorted(source.glob("*.safetensors"))]
            with programs.mounted(source, mountpoint):
                first = json.loads(next(line for line in open(mountpoint / ".stfs/tensors.json")
                                        if "path" in line).strip("[], \n"))["path"]

            def walk_in_memory():
                return programs.seconds("walk", files)

            def walk_process():
                begin = time.perf_counter()
                programs.measure("walk", files)
                return time.perf_counter() - begin

            table.time(work, "nlohmann's SAX parser over the same headers, in memory", "<= 1.5",
                       lambda: first_byte(source, first), walk_in_memory)
            table.time(work, "a process that reads the headers and does that", "", lambda: first_byte(source, first),
                       walk_process)

        work = f"mount to first byte, {self.size.wide} tensors of GGUF"
        if table.wants(work):
            gguf, tensor = self.gguf_of(wide)
            table.time(work, "safetensors of as many", "<= 1", lambda: first_byte(gguf, tensor),
                       lambda: first_byte(wide, first))

        work = "mount to first byte, a PyTorch file of 7B"
        if table.wants(work):
            one, torch = self.directory / "one.safetensors", self.directory / "one.pt"
            if not torch.exists():
                run(programs.info, "extract", self.big, "*", "-o", one, "--force")
                torch_file.write_torch(one, torch)
            tensor = json.loads(subprocess.run([programs.info, "list", "--json", one], check=True, text=True,
                                               stdout=subprocess.PIPE).stdout)[0]["path"]
            table.time(work, "a safetensors file of the same tensors", "<= 2", lambda: first_byte(torch, tensor),
                       lambda: first_byte(one, tensor))

        header = int.from_bytes(next(wide.glob("*.safetensors")).open("rb").read(8), "little")
        work = f"resident memory of the daemon, {self.size.wide} tensors"
        if not table.wants(work):
            return
        with programs.mounted(wide, mountpoint):
            status = programs.daemon_of(mountpoint) / "status"

            def resident():
                return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status.read_text()).group(1))

            table.add(f"{work}, mounted", "bytes of the header", "", [resident() / header])
            control = mountpoint / ".stfs"
            # Lists without attributes, so that the kernel does not allocate 6 GB of inodes. The daemon keeps the same.
            for view in sorted(path for path in control.iterdir() if path.is_dir()):
                run("ls", "-f", view)
            run("find", control / "tree", "-maxdepth", "3")
            run("cat", control / "tensors.json", control / "tensors.tsv", control / "info.json")
            table.add(f"{work}, all views walked", "bytes of the header", "<= 4", [resident() / header])


def file_system_of(path):
    return subprocess.run(["stat", "--file-system", "--format=%T", path], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.strip().replace("ext2/ext3", "ext4")


def machine():
    """Returns the hardware and the kernel that the figures depend on, without the name of the machine."""
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)
    version = subprocess.run(["fusermount3", "--version"], text=True, stdout=subprocess.PIPE, check=False).stdout
    return {"processors": PROCESSORS, "kernel": os.uname().release.split("-")[0], "memory_gib": round(int(memory) / MIB),
            "libfuse": version.split()[-1] if version else "", "load": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", type=pathlib.Path, help="the directory of a release build")
    parser.add_argument("--quick", action="store_true", help="use little data and two rounds, to check that everything works")
    parser.add_argument("--only", metavar="REGEX", help="measure only rows with a matching work")
    parser.add_argument("--rounds", type=int, help="measurements of each row")
    parser.add_argument("--json", type=pathlib.Path, help="the output file for the figures (default: BUILD/bench.json)")
    parser.add_argument("--chart", type=pathlib.Path, help="an SVG file for the chart of the rows with other programs")
    parser.add_argument("--directory", type=pathlib.Path,
                        help="the directory to make, keep and reuse checkpoints in (default: a temporary one)")
    arguments = parser.parse_args()

    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        say("bench.py: /dev/fuse is missing or may not be opened, so nothing can be mounted")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_MOUNT") == "1" else 77)
    # After SIGTERM, too, the mounts must be unmounted and the files removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    size = Size(arguments.quick)
    size.rounds = arguments.rounds or size.rounds
    table = Table(size.rounds, arguments.only)
    with contextlib.ExitStack() as stack:
        if arguments.directory:
            directory = arguments.directory.resolve()
            directory.mkdir(parents=True, exist_ok=True)
        else:
            # Uses the build directory, because /tmp may be in memory.
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.build.resolve())))
        began = time.perf_counter()
        bench = Bench(Programs(arguments.build.resolve()), table, size, directory)
        bench.all()
        quantised.Quantised(bench).all()
        layers.Layers(bench).all()
        deltas.Deltas(bench).all()
        statistics_rows.Statistics(bench).all()
        remote.Remote(bench, arguments.build.resolve()).all()
        library.Library(bench, arguments.build.resolve()).all()
    result = {"machine": machine(), "quick": arguments.quick, "seconds": round(time.perf_counter() - began),
              "rows": table.rows}
    target = arguments.json or arguments.build / "bench.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.chart:
        arguments.chart.write_text(chart.draw(table.rows))
    print(table.markdown())
    words = result["machine"]
    print(f"\n{words['processors']} processors, kernel {words['kernel']}, {words['memory_gib']} GiB of memory, "
          f"libfuse {words['libfuse']}; {size.rounds} rounds, {result['seconds']} s; {target}")


if __name__ == "__main__":
    main()
