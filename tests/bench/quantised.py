"""The rows of quantised weights: the values as BF16, compared with raw files of the same size and with NumPy.

Each checkpoint has weights of 4096 x 4096 in one scheme, and the same number of raw BF16 tensors of that size. NumPy reads
codes and scales from a memmap and computes the values that the mount shows, with one thread per processor and one weight
per task.
"""
import concurrent.futures
import json
import os
import time

try:
    import numpy as np
except ImportError:
    np = None

SIDE = 4096
OUT = 2 * SIDE * SIDE  # bytes of a weight as BF16
GROUP = 128


def e4m3():
    """Returns the 256 values of F8_E4M3."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    values[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def bf16(values):
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def nibbles(packed):
    """Returns the fields of 4 bits along the last dimension, with the low field of each byte first."""
    packed = packed.view(np.uint8)
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def repeated(scales, size, axis=-1):
    return np.repeat(scales, size, axis)


class Scheme:
    def __init__(self, name, method, parts, values):
        self.name = name
        self.config = {"quantization_config": method}
        self.parts = parts  # ending -> (dtype, shape, function that makes the bytes)
        self.values = values  # computes the values from the parts as arrays


def schemes():
    draw = np.random.default_rng(1)

    def noise(shape):
        return draw.integers(0, 256, int(np.prod(shape)), np.uint8)

    def floats(shape):
        return (draw.random(shape, np.float32) / 64 + 2**-10).astype("<f4")

    def halves(shape):
        return (draw.random(shape) / 64 + 2**-10).astype("<f2")

    def some_bf16(shape):
        return bf16(floats(shape))

    def some_e4m3(shape):
        return draw.integers(0x20, 0x60, shape, np.uint8)

    def some_e8m0(shape):
        return draw.integers(118, 126, shape, np.uint8)

    fp8, fp4 = e4m3(), np.array(E2M1, np.float32)
    power = np.append(np.exp2(np.arange(-127.0, 128)), np.nan).astype(np.float32)
    yield Scheme("FP8 with blocks of 128", {"quant_method": "fp8", "weight_block_size": [128, 128]},
                 {".weight": ("F8_E4M3", (SIDE, SIDE), noise), ".weight_scale_inv": ("F32", (SIDE // 128, SIDE // 128), floats)},
                 lambda p: fp8[p[".weight"]] * repeated(repeated(p[".weight_scale_inv"], 128, 0), 128))
    yield Scheme("MXFP4 of gpt-oss", {"quant_method": "mxfp4"},
                 {"_blocks": ("U8", (2, SIDE, SIDE // 64, 16), noise), "_scales": ("U8", (2, SIDE, SIDE // 64), some_e8m0)},
                 lambda p: np.ascontiguousarray((fp4[nibbles(p["_blocks"])] * power[p["_scales"]][..., None]).reshape(2, SIDE, SIDE // 2).swapaxes(1, 2)))
    yield Scheme("NVFP4 of ModelOpt", {"quant_method": "modelopt", "quant_algo": "NVFP4"},
                 {".weight": ("U8", (SIDE, SIDE // 2), noise), ".weight_scale": ("F8_E4M3", (SIDE, SIDE // 16), some_e4m3), ".weight_scale_2": ("F32", (), floats)},
                 lambda p: fp4[nibbles(p[".weight"])] * repeated(fp8[p[".weight_scale"]] * p[".weight_scale_2"], 16))
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
    yield Scheme("INT4 of compressed-tensors",
                 {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}},
                 {".weight_packed": ("I32", (SIDE, SIDE // 8), lambda shape: noise((*shape, 4))), ".weight_scale": ("BF16", (SIDE, SIDE // GROUP), some_bf16),
                  ".weight_shape": ("I64", (2,), lambda shape: np.array([SIDE, SIDE], "<i8"))},
                 lambda p: (nibbles(p[".weight_packed"]).astype(np.float32) - 8)
                 * repeated((p[".weight_scale"].astype(np.uint32) << 16).view(np.float32), GROUP))

    def gptq(p):
        rows = np.arange(0, 32, 4, dtype=np.uint32)
        codes = (p[".qweight"].view(np.uint32)[:, None, :] >> rows[:, None] & 15).reshape(SIDE, SIDE)
        zeros = (p[".qzeros"].view(np.uint32)[..., None] >> rows & 15).reshape(-1, SIDE) + 1 & 15
        values = (codes.astype(np.float32) - repeated(zeros.astype(np.float32), GROUP, 0)) * repeated(p[".scales"].astype(np.float32), GROUP, 0)
        return np.ascontiguousarray(values.T)

    yield Scheme("GPTQ with 4 bits", {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False},
                 {".qweight": ("I32", (SIDE // 8, SIDE), lambda shape: noise((*shape, 4))),
                  ".qzeros": ("I32", (SIDE // GROUP, SIDE // 8), lambda shape: noise((*shape, 4))), ".scales": ("F16", (SIDE // GROUP, SIDE), halves)}, gptq)


NUMPY = {"F8_E4M3": "u1", "U8": "u1", "I32": "<i4", "F32": "<f4", "BF16": "<u2", "F16": "<f2", "I64": "<i8"}


class Quantised:
    def __init__(self, bench):
        self.bench = bench
        self.table = bench.table
        # The number of weights, and of raw tensors. It exceeds the 64 MiB of tiles that a mount keeps, so that each
        # tile is computed again.
        self.count = 4 if bench.size.is_quick else 12

    def make(self, scheme, directory):
        """Makes the checkpoint. Returns its path and the types, shapes and offsets of its tensors."""
        path = directory / "model.safetensors"
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(scheme.config))
        header, data, end = {}, [], 0
        for i in range(self.count):
            rows = [(f"w{i}{ending}", *part) for ending, part in scheme.parts.items()]
            for name, dtype, shape, make in [*rows, (f"raw{i}", "BF16", (SIDE, SIDE), None)]:
                raw = os.urandom(OUT) if make is None else np.ascontiguousarray(make(shape)).tobytes()
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
                data.append(raw)
                end += len(raw)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with path.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for raw in data:
                out.write(raw)
        places = {name: (row["dtype"], row["shape"], 8 + len(text) + row["data_offsets"][0]) for name, row in header.items()}
        return path, places

    def numpy_seconds(self, scheme, path, places):
        def one(i):
            parts = {}
            for ending in scheme.parts:
                dtype, shape, offset = places[f"w{i}{ending}"]
                parts[ending] = np.memmap(path, NUMPY[dtype], "r", offset, tuple(shape))
            return bf16(scheme.values(parts)).nbytes

        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            assert sum(pool.map(one, range(self.count))) == self.count * OUT
        return time.perf_counter() - begin

    def check_values(self, scheme, mount, path, places):
        """Raises if the mount shows other values than NumPy, because the comparison would be meaningless."""
        parts = {}
        for ending in scheme.parts:
            dtype, shape, offset = places[f"w0{ending}"]
            parts[ending] = np.memmap(path, NUMPY[dtype], "r", offset, tuple(shape))
        with np.errstate(invalid="ignore"):
            mine = bf16(scheme.values(parts)).reshape(-1)
        name = next(name for name in os.listdir(mount) if name.startswith("w0"))
        ours = np.fromfile(mount / name, "<u2")
        nan = (mine & 0x7FFF) > 0x7F80
        if not np.array_equal(mine[~nan], ours[~nan]) or not ((ours[nan] & 0x7FFF) > 0x7F80).all():
            raise RuntimeError(f"{scheme.name}: the mount shows other values than NumPy")

    def all(self):
        works = [f"{name} to BF16, first touch" for name in
                 ("FP8 with blocks of 128", "MXFP4 of gpt-oss", "NVFP4 of ModelOpt", "INT4 of compressed-tensors", "GPTQ with 4 bits")]
        if not any(self.table.wants(work) for work in works):
            return
        if np is None:
            for work in works:
                self.table.skip(work, "the raw files", "no NumPy")
            return
        directory = self.bench.directory / "quantised"
        for scheme, work in zip(schemes(), works):
            if not self.table.wants(work):
                continue
            path, places = self.make(scheme, directory)
            with self.bench.mounted(directory, "-o", "dequantize=bf16") as mount:
                self.check_values(scheme, mount, path, places)
                self.rows(scheme, work, mount, path, places)
            path.unlink()

    def rows(self, scheme, work, mount, path, places):
        seconds, measure = self.bench.programs.seconds, self.bench.programs.measure
        weights = [(0, OUT, mount / name) for name in sorted(os.listdir(mount)) if not name.startswith("raw")]
        raw = [(0, OUT, mount / f"raw{i}") for i in range(self.count)]
        assert len(weights) == self.count and all(file.stat().st_size == OUT for _, _, file in weights)

        def fresh():
            measure("drop", weights + raw)

        self.table.speed(work, "the raw files", ">= 0.5", lambda: seconds("read", weights), lambda: seconds("read", raw), fresh)
        self.table.speed(work, f"the same formula in NumPy, {len(os.sched_getaffinity(0))} threads", ">= 5",
                         lambda: seconds("read", weights), lambda: self.numpy_seconds(scheme, path, places), fresh)
