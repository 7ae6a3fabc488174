"""The rows of adapters and edits: weights with a merged adapter, and the surgeries of README as files. bench.py runs them.

The weights of an adapter are BF16 of 4096 x 4096, compared with the same number of raw weights and with the same formula in
NumPy. A surgery is a process that writes a new checkpoint and syncs it, on ext4 and on XFS. It is compared with a Python
script that loads and writes the tensors like save_file(load_file()). Both read a source in the page cache.
"""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError:
    np = None

SIDE = 4096
PROCESSORS = len(os.sched_getaffinity(0))
DTYPES = {"BF16": "<u2", "F32": "<f4"}


def to_bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def merged(weight, a, b, scale):
    return to_bf16(from_bf16(weight) + np.float32(scale) * (b @ a))


def write(path, tensors, metadata=None):
    """Writes a safetensors file. `tensors` is {name: (dtype, array)}."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(array.data)
        file.flush()
        os.fsync(file.fileno())


def read(path):
    """Reads a whole file into memory. Returns ({name: (dtype, array)}, metadata)."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = np.fromfile(file, np.uint8)
    metadata = header.pop("__metadata__", None)
    return {name: (row["dtype"], data[slice(*row["data_offsets"])].view(DTYPES[row["dtype"]]).reshape(row["shape"]))
            for name, row in header.items()}, metadata


# ------------------------------------------------------------------- the peer script: SURGERY SOURCE OUT


def read_shards(directory):
    weight_map = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return {name: each for shard in sorted(set(weight_map.values())) for name, each in read(directory / shard)[0].items()}


def write_shards(tensors, directory, size):
    shards, filled = [{}], 0
    for name, (dtype, array) in tensors.items():
        if shards[-1] and filled + array.nbytes > size:
            shards.append({})
            filled = 0
        shards[-1][name] = dtype, array
        filled += array.nbytes
    directory.mkdir()
    weight_map = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write(directory / file, shard)
        weight_map.update(dict.fromkeys(shard, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def with_adapter(tensors, adapter):
    factors, _ = read(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name, (dtype, weight) in tensors.items():
        module = "base_model.model." + name.removesuffix(".weight")
        if module + ".lora_A.weight" in factors:
            a, b = (factors[f"{module}.lora_{word}.weight"][1] for word in "AB")
            weight = merged(weight, a, b, config["lora_alpha"] / config["r"])
        yield name, (dtype, weight)


def script(surgery, source, out):
    tensors, metadata = (read_shards(source), None) if source.is_dir() else read(source)
    if surgery == "rename":
        tensors = {name.removeprefix("model."): each for name, each in tensors.items()}
    elif surgery == "tie":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    elif surgery == "drop":
        tensors = {name: each for name, each in tensors.items() if not name.startswith("vision_tower.")}
    elif surgery == "title":
        metadata["title"] = "another"
    elif surgery == "adapter":
        tensors = dict(with_adapter(tensors, source.parent / "adapter"))
    elif surgery == "reshard":
        return write_shards(tensors, out, Surgeries.SHARD)
    write(out, tensors, metadata)


# ------------------------------------------------------------------------------------------------- the rows


class Layers:
    def __init__(self, bench):
        self.bench = bench

    def all(self):
        works = {rank: f"an adapter of rank {rank} merged, first touch" for rank in (16, 64)}
        if np is None:
            for work in works.values():
                self.bench.table.skip(work, "the raw files", "no NumPy")
            return
        for rank, work in works.items():
            if self.bench.table.wants(work):
                self.adapter(rank, work)
        Surgeries(self.bench).all()

    def adapter(self, rank, work):
        table, seconds, measure = self.bench.table, self.bench.programs.seconds, self.bench.programs.measure
        count = 2 if self.bench.size.is_quick else 8
        directory = self.bench.directory / f"adapter-{rank}"
        (directory / "adapter").mkdir(parents=True, exist_ok=True)
        path = directory / "model.safetensors"
        random = np.random.default_rng(rank)

        def some(*shape):
            return random.standard_normal(shape, np.float32) * np.float32(0.02)

        names = [f"{kind}{i}.weight" for kind in ("w", "raw") for i in range(count)]
        write(path, {name: ("BF16", to_bf16(some(SIDE, SIDE))) for name in names})
        factors = {}
        for i in range(count):
            factors[f"base_model.model.w{i}.lora_A.weight"] = "F32", some(rank, SIDE)
            factors[f"base_model.model.w{i}.lora_B.weight"] = "F32", some(SIDE, rank)
        write(directory / "adapter/adapter_model.safetensors", factors)
        (directory / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 32}))
        tensors = read(path)[0]

        def one(i):
            module = f"base_model.model.w{i}.lora_"
            return merged(tensors[f"w{i}.weight"][1], factors[module + "A.weight"][1], factors[module + "B.weight"][1], 32 / rank)

        def in_numpy():
            begin = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(PROCESSORS) as pool:
                assert sum(each.nbytes for each in pool.map(one, range(count))) == count * 2 * SIDE * SIDE
            return time.perf_counter() - begin

        with self.bench.mounted(path, "-o", f"lora={directory / 'adapter'}") as mount:
            files = {kind: [(0, 2 * SIDE * SIDE, mount / f"{kind}{i}.weight") for i in range(count)] for kind in ("w", "raw")}
            # BLAS adds in another order, so some values differ by one unit in the last place.
            ours = np.fromfile(mount / "w0.weight", "<u2").reshape(SIDE, SIDE)
            if (ours != one(0)).mean() > 0.01:
                raise RuntimeError("the mount shows other values than NumPy")

            def fresh():
                measure("drop", files["w"] + files["raw"])

            table.speed(work, "the raw files", ">= 0.5" if rank == 16 else ">= 0.25", lambda: seconds("read", files["w"]),
                        lambda: seconds("read", files["raw"]), fresh)
            table.speed(work, f"the same formula in NumPy with BLAS, {PROCESSORS} threads", ">= 2" if rank == 16 else "",
                        lambda: seconds("read", files["w"]), in_numpy, fresh)
        shutil.rmtree(directory)


class Surgeries:
    SHARD = 500_000_000
    LINES = {  # surgery: (name in README, source, arguments for stfs-info)
        "rename": ("rename a prefix", "model.safetensors", ["-e", r"rename s/^model\.//"]),
        "tie": ("tie lm_head", "model.safetensors",
                ["-e", "drop lm_head.*", "-e", "copy s/^model.embed_tokens/lm_head/"]),
        "drop": ("drop a tower", "model.safetensors", ["-e", "drop vision_tower.*"]),
        "title": ("change the title", "model.safetensors", ["-e", "metadata title another"]),
        "adapter": ("merge an adapter of rank 16", "model.safetensors", ["--lora", "adapter"]),
        "reshard": ("reshard", "model.safetensors", ["--shard-size", str(SHARD)]),
        "merge": ("merge shards", "shards", []),
    }
    MKFS = {"ext4": ["mkfs.ext4", "-q"], "XFS": ["mkfs.xfs", "-q", "-m", "reflink=1"]}

    def __init__(self, bench):
        self.bench = bench
        self.rows = 8 if bench.size.is_quick else 300  # tensors of 10 MB
        self.rounds = min(bench.size.rounds, 3)

    def all(self):
        for kind in self.MKFS:
            works = {surgery: f"edit on {kind}: {words}" for surgery, (words, _, _) in self.LINES.items()}
            works = {surgery: work for surgery, work in works.items() if self.bench.table.wants(work)}
            if not works:
                continue
            with contextlib.ExitStack() as stack:
                try:
                    disk = stack.enter_context(self.disk(kind))
                except (OSError, subprocess.CalledProcessError) as error:
                    for work in works.values():
                        self.bench.table.skip(work, "a Python script", f"no {kind} on a loop device: {error}")
                    continue
                self.make(disk)
                for surgery, work in works.items():
                    self.row(surgery, work, disk)

    @contextlib.contextmanager
    def disk(self, kind):
        image = self.bench.directory / f"{kind}.img"
        where = self.bench.directory / kind
        where.mkdir(exist_ok=True)
        with open(image, "wb") as file:
            file.truncate(max(400 << 20, 5 * self.rows * 10_500_000))
        try:
            subprocess.run([*self.MKFS[kind], image], check=True, stderr=subprocess.DEVNULL)
            subprocess.run(["mount", "-o", "loop", image, where], check=True, stderr=subprocess.DEVNULL)
            try:
                yield where
            finally:
                subprocess.run(["umount", where], check=True)
        finally:
            image.unlink()

    def make(self, disk):
        random = np.random.default_rng(5)

        def some(*shape):
            return to_bf16(random.standard_normal(shape, np.float32))

        tensors = {"model.embed_tokens.weight": ("BF16", some(4096, 1220)), "lm_head.weight": ("BF16", some(4096, 1220))}
        factors = {}
        for i in range(self.rows - 2):
            if i % 10 == 0:
                tensors[f"vision_tower.{i}.weight"] = "BF16", some(4096, 1220)
                continue
            tensors[f"model.layers.{i}.weight"] = "BF16", some(4096, 1220)
            if i % 2:
                module = f"base_model.model.model.layers.{i}.lora_"
                factors[module + "A.weight"] = "F32", random.standard_normal((16, 1220), np.float32)
                factors[module + "B.weight"] = "F32", random.standard_normal((4096, 16), np.float32)
        write(disk / "model.safetensors", tensors, {"format": "pt", "title": "one"})
        (disk / "adapter").mkdir()
        write(disk / "adapter/adapter_model.safetensors", factors)
        (disk / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16, "lora_alpha": 32}))
        write_shards(tensors, disk / "shards", self.SHARD)

    def row(self, surgery, work, disk):
        _, source, words = self.LINES[surgery]
        out = disk / ("out" if surgery == "reshard" else "out.safetensors")
        commands = {
            "stfs": [self.bench.programs.info, "edit", source, *words, "-o", out],
            "script": [sys.executable, pathlib.Path(__file__).resolve(), surgery, source, out],
        }
        seconds, written = {each: [] for each in commands}, {each: [] for each in commands}
        for i in range(self.rounds):
            for program in list(commands)[:: 1 if i % 2 else -1]:
                subprocess.run(["sync", "-f", disk], check=True)
                before = sectors_written(disk)
                begin = time.perf_counter()
                subprocess.run([str(word) for word in commands[program]], check=True, cwd=disk, stdout=subprocess.DEVNULL)
                seconds[program].append(time.perf_counter() - begin)
                subprocess.run(["sync", "-f", disk], check=True)
                written[program].append(512 * (sectors_written(disk) - before))
                shutil.rmtree(out) if out.is_dir() else out.unlink()
        self.bench.table.add(work, "a Python script that loads and writes", "",
                             [y / x for x, y in zip(seconds["stfs"], seconds["script"])],
                             seconds=statistics.median(seconds["stfs"]), peer_seconds=statistics.median(seconds["script"]),
                             written=statistics.median(written["stfs"]), peer_written=statistics.median(written["script"]))


def sectors_written(path):
    """Returns the sectors written to the device of a path: the seventh field of its stat (block/stat.rst)."""
    device = os.stat(path).st_dev
    fields = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(fields[6])


if __name__ == "__main__":
    script(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
