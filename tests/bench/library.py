"""The rows of `import stfs`, measured in this process. bench.py runs them; docs/BENCHMARKS.md explains them.

The peers are NumPy, gguf-py if `gguf` can be imported, safetensors if it is installed, and nginx with curl.
"""
import concurrent.futures
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

try:
    import numpy
except ImportError:
    numpy = None

import remote

MIB = 1 << 20
ROOT = pathlib.Path(__file__).resolve().parents[2]
THREADS = len(os.sched_getaffinity(0))
SIDE = 4096  # elements of a side of a matrix
BLOCKS = {"Q4_K": (12, 144, (0, 2)), "Q6_K": (14, 210, (208,))}  # number in GGUF, bytes, places of float16 scales


def optional(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def seconds(action):
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def write_safetensors(path, tensors):
    """Writes a file. `tensors` is a list of (name, dtype, shape, function that returns an array)."""
    sizes = {"F32": 4, "BF16": 2}
    header, end = {}, 0
    for name, dtype, shape, _ in tensors:
        size = sizes[dtype] * int(numpy.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # so that the data is aligned for NumPy
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for *_, make in tensors:
            out.write(make().tobytes())
    return path


class Library:
    WORKS = ("`import stfs`: the sum of a checkpoint through views", "`import stfs`: a view of one of 1,000 tensors",
             "`import stfs`: open {} tensors", "`import stfs`: open and list {} names",
             "`import stfs`: {} of GGUF as float32", "`import stfs`: BF16 as float32",
             "`import stfs`: first read over http", "`import stfs`: `load_file` to torch on cpu")

    def __init__(self, bench, build):
        self.bench, self.build, self.table = bench, build, bench.table
        self.directory = bench.directory / "library"
        self.count = 8 if bench.size.is_quick else 64  # tensors of 16 MiB

    def all(self):
        size = self.bench.size
        works = [work.format(which) for work, *all_of in ((self.WORKS[2], size.wide), (self.WORKS[3], size.small),
                 (self.WORKS[4], *BLOCKS)) for which in all_of]
        works += [work for work in self.WORKS if "{}" not in work]
        works += [f"{self.WORKS[7]}, {what}" for what in ("and their sum",)]
        if not any(self.table.wants(work) for work in works):
            return
        if numpy is None:
            for work in works:
                self.table.skip(work, "", "no NumPy")
            return
        os.environ["STFS_LIBRARY"] = str(self.build / "tools/library/libstfs.so.0")
        sys.path.insert(0, str(ROOT / "tools/library/python"))
        self.stfs = importlib.import_module("stfs")
        self.directory.mkdir(exist_ok=True)
        self.draw = numpy.random.default_rng(1)
        self.sums()
        self.views()
        self.opens()
        self.blocks()
        self.bf16()
        self.over_http()
        self.torch()

    def floats(self):
        path = self.directory / "floats.safetensors"
        if not path.exists():
            write_safetensors(path, [(f"t{i}", "F32", [1024, 4096], lambda: self.draw.standard_normal((1024, 4096), "f4"))
                                     for i in range(self.count)])
        return path

    def by_hand(self, path):
        """Returns a dict from names to arrays, read like a program without a library."""
        raw = numpy.memmap(path, "u1", "r")
        length = int.from_bytes(raw[:8].tobytes(), "little")
        arrays = {}
        for name, row in json.loads(raw[8:8 + length].tobytes()).items():
            begin, end = (8 + length + offset for offset in row["data_offsets"])
            arrays[name] = raw[begin:end].view("<f4").reshape(row["shape"])
        return arrays

    def sums(self):
        if not self.table.wants(self.WORKS[0]):
            return
        path, stfs = self.floats(), self.stfs
        ours = [float(tensor.numpy().sum()) for tensor in stfs.open(path).values()]
        assert ours == [float(array.sum()) for array in self.by_hand(path).values()]
        self.table.speed(self.WORKS[0], "`numpy.memmap` by hand", ">= 0.98",
                         lambda: seconds(lambda: [t.numpy().sum() for t in stfs.open(path).values()]),
                         lambda: seconds(lambda: [a.sum() for a in self.by_hand(path).values()]))

    def views(self):
        """Measures the first view of each tensor of a newly opened checkpoint."""
        if not self.table.wants(self.WORKS[1]):
            return
        path = write_safetensors(self.directory / "small.safetensors", [
            (f"model.layers.{i}.weight", "F32", [8, 16], lambda: self.draw.standard_normal(128, "f4"))
            for i in range(1000)])
        stfs, taken = self.stfs, []
        for _ in range(self.bench.size.rounds + 1):
            m = stfs.open(path)
            names = list(m)
            taken.append(1e6 * seconds(lambda: [m[name].numpy() for name in names]) / len(names))
        self.table.add(self.WORKS[1], "microseconds", "<= 3", taken[1:])

    def opens(self):
        size, stfs = self.bench.size, self.stfs
        work = self.WORKS[2].format(size.wide)
        if self.table.wants(work):
            wide = self.bench.checkpoint("wide", "--tensors", str(size.wide))
            info = self.bench.programs.info

            def listed():
                return seconds(lambda: subprocess.run([info, "list", wide], check=True, stdout=subprocess.DEVNULL))

            self.table.time(work, "`stfs-info list` of them", "<= 1.2", lambda: seconds(lambda: stfs.open(wide)), listed)
        work = self.WORKS[3].format(size.small)
        if self.table.wants(work):
            small = self.bench.checkpoint("moe", "--tensors", str(size.small))
            taken = [seconds(lambda: list(stfs.open(small))) for _ in range(size.rounds + 1)]
            self.table.add(work, "seconds", "<= 0.2", taken[1:])

    def blocks(self):
        gguf = optional("gguf")
        for name, (number, length, scales) in BLOCKS.items():
            work, peer = self.WORKS[4].format(name), "gguf-py's `dequantize`"
            if not self.table.wants(work):
                continue
            if gguf is None:
                self.table.skip(work, peer, "no module gguf")
                continue
            blocks = self.draw.integers(0, 256, (SIDE * SIDE // 256, length), "u1")
            for place in scales:
                blocks[:, place:place + 2] = self.draw.random((len(blocks), 1)).astype("<f2").view("u1")
            path = self.directory / f"{name}.gguf"
            header = (b"GGUF" + (3).to_bytes(4, "little") + (1).to_bytes(8, "little") + bytes(8) +
                      (1).to_bytes(8, "little") + b"w" + (2).to_bytes(4, "little") + 2 * SIDE.to_bytes(8, "little") +
                      number.to_bytes(4, "little") + bytes(8))
            path.write_bytes(header + bytes(-len(header) % 32) + blocks.tobytes())
            tensor = self.stfs.open(path)["w"]
            rows = tensor.memoryview()
            rows = numpy.frombuffer(rows, "u1").reshape(SIDE, -1)

            def theirs():
                return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(number))

            assert numpy.array_equal(theirs(), tensor.numpy("f32"))
            self.table.speed(work, peer, ">= 5", lambda: seconds(lambda: tensor.numpy("f32")), lambda: seconds(theirs))

    def bf16(self):
        """The peer shifts pieces that fit the caches, with one thread per processor."""
        work = self.WORKS[5]
        if not self.table.wants(work):
            return
        path = write_safetensors(self.directory / "bf16.safetensors", [
            (f"w{i}", "BF16", [SIDE, SIDE], lambda: self.draw.integers(0, 1 << 16, SIDE * SIDE, "u2")) for i in range(4)])
        tensors = list(self.stfs.open(path).values())
        raw = [numpy.frombuffer(tensor.memoryview(), "<u2") for tensor in tensors]

        def shifted(values):
            out = numpy.empty(values.size, "<u4")
            pieces = range(0, values.size, 1 << 18)

            def one(at):
                numpy.left_shift(values[at:at + (1 << 18)], numpy.uint32(16), out=out[at:at + (1 << 18)],
                                 dtype=numpy.uint32)

            list(pool.map(one, pieces))
            return out.view("<f4").reshape(SIDE, SIDE)

        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            assert shifted(raw[0]).tobytes() == tensors[0].numpy("f32").tobytes()
            self.table.speed(work, f"NumPy's shift, {THREADS} threads", ">= 1",
                             lambda: seconds(lambda: [tensor.numpy("f32") for tensor in tensors]),
                             lambda: seconds(lambda: [shifted(values) for values in raw]))

    def over_http(self):
        work, peer = self.WORKS[6], "8 parallel `curl` ranges to a file on the same disk"
        if not self.table.wants(work):
            return
        missing = [name for name in ("nginx", "curl") if not shutil.which(name)]
        if missing:
            self.table.skip(work, peer, "no " + " and no ".join(missing))
            return
        path, cache = self.floats(), self.directory / "cache"

        def read(url):
            shutil.rmtree(cache, ignore_errors=True)
            return seconds(lambda: [tensor.memoryview() for tensor in self.stfs.open(url, cache_dir=cache).values()])

        with remote.nginx(path.parent, self.directory) as base:
            url = f"{base}/{path.name}"
            self.table.speed(work, peer, ">= 0.9", lambda: read(url),
                             lambda: seconds(lambda: self.download(url, path.stat().st_size)))
        shutil.rmtree(cache, ignore_errors=True)

    def download(self, url, size):
        target = self.directory / "downloaded"
        target.unlink(missing_ok=True)
        part, workers = -(-size // 8), []
        for first in range(0, size, part):
            with target.open("r+b" if target.exists() else "w+b") as out:
                out.truncate(size)
                out.seek(first)
                words = ["curl", "-s", "-r", f"{first}-{min(size, first + part) - 1}", url]
                workers.append(subprocess.Popen(words, stdout=out))
        if any([worker.wait() for worker in workers]):
            raise RuntimeError("curl failed")

    def torch(self):
        """Without safetensors the peer does what safetensors does: it makes one private mapping of the file and views of it."""
        work, torch = self.WORKS[7], optional("torch")
        if not (self.table.wants(work) or self.table.wants(f"{work}, and their sum")):
            return
        if torch is None:
            self.table.skip(work, "safetensors", "no torch")
            return
        theirs, peer = optional("safetensors.torch"), "safetensors"
        if theirs is None:
            peer = "`torch.from_file` and views of it, by hand"
        path, load = self.floats(), importlib.import_module("stfs.torch").load_file

        def by_hand():
            if theirs is not None:
                return theirs.load_file(path)
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
            size = path.stat().st_size
            raw = torch.from_file(str(path), False, size, dtype=torch.uint8)
            return {name: raw[8 + length + row["data_offsets"][0]:8 + length + row["data_offsets"][1]]
                    .view(torch.float32).reshape(row["shape"]) for name, row in header.items()}

        assert all(torch.equal(tensor, other) for tensor, other in zip(load(path).values(), by_hand().values()))
        self.table.speed(work, peer, ">= 1" if theirs else "", lambda: seconds(lambda: load(path)), lambda: seconds(by_hand))
        self.table.speed(f"{work}, and their sum", peer, ">= 1",
                         lambda: seconds(lambda: [tensor.sum() for tensor in load(path).values()]),
                         lambda: seconds(lambda: [tensor.sum() for tensor in by_hand().values()]))
