"""The rows of deltas: a base with one or four updates of 1 % of its elements, compared with a full checkpoint of the same
version and with patching a copy, like programs that load updates.

The weights are BF16 from a normal distribution, and an update changes elements by one unit in the last place.
"""
import concurrent.futures
import json
import os
import re
import shutil
import struct
import subprocess
import time

try:
    import numpy as np
    import xxhash
    import zstandard
except ImportError:
    np = None

SHARE = 0.01
LINKS = 4


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def write(path, tensors):
    header, end = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [data.size // 4096, 4096], "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            out.write(data)
    return path


def parts_of(path):
    """Returns {name: (begin, end)} with offsets in the file, and the metadata."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    return {name: tuple(8 + length + at for at in each["data_offsets"]) for name, each in header.items()}, metadata


class Deltas:
    def __init__(self, bench):
        self.bench = bench
        self.table = bench.table
        self.directory = bench.directory / "deltas"
        quick = bench.size.is_quick
        self.count, self.elements = (8, 1 << 20) if quick else (64, 8 << 20)  # 16 MiB, 1 GiB
        self.cores = len(os.sched_getaffinity(0))

    def make(self):
        """Makes base.safetensors, run/weight_v000001 to 4, and the full checkpoint of version 1."""
        shutil.rmtree(self.directory, ignore_errors=True)
        versions = self.directory / "run"
        versions.mkdir(parents=True)
        draw = np.random.default_rng(3)
        state = {f"w{i:02}": (draw.standard_normal(self.elements, np.float32).view(np.uint32) >> 16).astype(np.uint16)
                 for i in range(self.count)}
        state["norm"] = state["w00"][:4096].copy()  # a small tensor, because mounting verifies the smallest tensor
        state["same"] = state["w00"].copy()
        self.base = before = write(self.directory / "base.safetensors", state)
        self.bytes = self.count * 2 * self.elements
        for number in range(1, LINKS + 1):
            for name, data in state.items():
                if name != "same":
                    data[draw.integers(0, data.size, int(SHARE * data.size))] ^= 1
            after = write(self.directory / f"full{number}.safetensors", state)
            run(self.bench.programs.info, "delta", before, after, "-o", versions / f"weight_v{number:06d}")
            if number > 2:
                before.unlink()  # only the deltas of the intermediate versions are read
            before = after
        before.unlink()
        self.full = self.directory / "full1.safetensors"
        self.deltas = [versions / f"weight_v{number:06d}" for number in range(1, LINKS + 1)]

    def files(self, mount):
        return [(0, 2 * self.elements, mount / f"w{i:02}") for i in range(self.count)]

    def read(self, source, *options, again=False):
        """Returns the seconds for the first or second read of all changed tensors in a new mount."""
        with self.bench.mounted(source, *options) as mount:
            files = self.files(mount)
            seconds = self.bench.programs.seconds("read", files)
            if again:
                self.bench.programs.measure("drop", files)
                seconds = self.bench.programs.seconds("read", files)
            return seconds

    def first_byte(self, *options):
        begin = time.perf_counter()
        with self.bench.mounted(self.base, *options) as mount:
            with open(mount / "same", "rb", buffering=0) as file:
                file.read(1)
            return time.perf_counter() - begin

    def all(self):
        work = {
            "first": "delta of 1 %: first read of all tensors",
            "again": "delta of 1 %: read again",
            "chain": f"{LINKS} deltas of 1 %: first read of all tensors",
            "byte": "delta of 1 %: from `stfs` to the first byte of an unchanged tensor",
            "cache": "delta of 1 %, `-o page_cache=direct`: pages beyond those of the base",
            "memory": "delta of 1 %, `-o page_cache=direct`: memory of the daemon",
            "patch": "delta of 1 %: mount, and first read of all tensors",
            "encode": "`stfs-info delta`, 1 % changed",
        }
        if not any(self.table.wants(row) for row in work.values()):
            return
        if np is None:
            for row in work.values():
                self.table.skip(row, "", "no NumPy, zstandard and xxhash")
            return
        self.make()
        self.bench.programs.seconds("read", [(0, path.stat().st_size, path) for path in (self.base, self.full)])
        one, four = f"delta={self.deltas[0]}", f"delta={self.deltas[-1]}"
        peer = "a full checkpoint"
        full = lambda: self.read(self.full)
        self.table.speed(work["first"], peer, ">= 0.4", lambda: self.read(self.base, "-o", one), full)
        self.table.speed(work["again"], peer, ">= 0.7", lambda: self.read(self.base, "-o", one, again=True),
                         lambda: self.read(self.full, again=True))
        self.table.speed(work["chain"], peer, ">= 0.2", lambda: self.read(self.base, "-o", four), full)
        self.milliseconds(work["byte"], one)
        self.memory(work["cache"], work["memory"], one)
        self.table.speed(work["patch"], f"patching a copy: copy, patch, check, {self.cores} threads", "",
                         lambda: self.mount_and_read(one), self.patch_copy)
        self.encoding(work["encode"])
        shutil.rmtree(self.directory)

    def milliseconds(self, work, one):
        if not self.table.wants(work):
            return
        more = []
        for _ in range(self.bench.size.rounds + 1):
            plain = self.first_byte()
            more.append(1000 * (self.first_byte("-o", one) - plain))
        self.table.add(work, "milliseconds more than without", "<= 10", more[1:])

    def memory(self, work, daemon, one):
        if not (self.table.wants(work) or self.table.wants(daemon)):
            return
        shards = [(0, path.stat().st_size, path) for path in self.deltas[0].glob("*.safetensors")]
        deltas = sum(length for _, length, _ in shards)
        measure = self.bench.programs.measure
        with self.bench.mounted(self.base, "-o", f"page_cache=direct,{one}") as mount:
            files = self.files(mount)
            measure("drop", shards)
            measure("read", files)
            # With page_cache=direct, the files of the mount have no cached pages.
            self.table.add(work, "bytes of the delta", "<= 1.2", [measure("resident", shards) / deltas])
            status = (self.bench.programs.daemon_of(mount) / "status").read_text()
            kept = 1024 * int(re.search(r"RssAnon:\s+(\d+)", status).group(1))
            self.table.add(daemon, "bytes of the delta", "", [kept / deltas])

    def mount_and_read(self, one):
        begin = time.perf_counter()
        with self.bench.mounted(self.base, "-o", one) as mount:
            self.bench.programs.measure("read", self.files(mount))
            return time.perf_counter() - begin

    def patch_copy(self):
        """Patches a private copy in place and verifies it, one tensor per thread."""
        copy = self.directory / "copy.safetensors"
        begin = time.perf_counter()
        shutil.copyfile(self.base, copy)
        places, _ = parts_of(copy)
        (shard,) = self.deltas[0].glob("*.safetensors")
        frames, digests = parts_of(shard)
        weights = np.memmap(copy, "u1", "r+")
        delta = np.memmap(shard, "u1", "r")

        def patch(name):
            change = zstandard.ZstdDecompressor().decompress(delta[slice(*frames[name])])
            tensor = weights[slice(*places[name])]
            tensor ^= np.frombuffer(change, "u1")
            assert xxhash.xxh3_128_hexdigest(tensor) == digests[name]

        with concurrent.futures.ThreadPoolExecutor(self.cores) as pool:
            list(pool.map(patch, frames))
        seconds = time.perf_counter() - begin
        copy.unlink()
        return seconds

    def encoding(self, work):
        if not self.table.wants(work):
            return
        out = self.directory / "made_1"

        def ours():
            shutil.rmtree(out, ignore_errors=True)
            begin = time.perf_counter()
            run(self.bench.programs.info, "delta", self.base, self.full, "-o", out)
            return time.perf_counter() - begin

        places, _ = parts_of(self.base)
        old, new = (np.memmap(path, "u1", "r") for path in (self.base, self.full))
        changes = [(old[slice(*places[name])] ^ new[slice(*places[name])]).tobytes() for name in places if name.startswith("w")]

        def zstd():
            begin = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(self.cores) as pool:
                list(pool.map(lambda change: zstandard.ZstdCompressor(level=1).compress(change), changes))
            return time.perf_counter() - begin

        self.table.speed(work, f"`zstd -1` of the differences in memory, {self.cores} threads", "", ours, zstd)
        self.table.add(work, "GB of NEW a second", ">= 1", [self.full.stat().st_size / 1e9 / ours() for _ in range(self.bench.size.rounds)])
