"""Reads a mounted GGUF file like a user's program, and compares it with ggml's values and with NumPy.

usage: mounted_values.py MOUNTPOINT DIRECTORY

The directory has the values of each tensor NAME as binary32 (NAME.f32), its bytes (NAME.raw), and blocks.json with the
elements and bytes of a block of each tensor. Prints the number of comparisons. Fails at the first difference.
"""
import errno
import json
import os
import pathlib
import random
import sys

import numpy


def bits(values):
    """Returns the bits of values. All NaNs get the same bits, because ggml does not define their payload."""
    flat = numpy.ascontiguousarray(values, "<f4").reshape(-1)
    return numpy.where(numpy.isnan(flat), numpy.uint32(0x7FC00000), flat.view("<u4"))


def expression(index):
    def part(i):
        if isinstance(i, int):
            return str(i)
        return f"{i.start}:{i.stop}" + (f":{i.step}" if i.step != 1 else "")

    return ",".join(map(part, index))


class Comparison:
    def __init__(self, mountpoint, directory):
        self.views = mountpoint / ".stfs"
        self.mountpoint = mountpoint
        self.directory = directory
        self.random = random.Random(1)
        self.count = 0

    def require(self, condition, what):
        self.count += 1
        if not condition:
            sys.exit(f"{what}: differs")

    def whole(self, name, values):
        found = numpy.load(self.views / "npy-f32" / (name + ".npy"))
        self.require(found.shape == values.shape and found.dtype == numpy.dtype("<f4"), f"{name}: shape")
        self.require(numpy.array_equal(bits(found), bits(values)), f"{name}: npy-f32")

    def parts_of_the_file(self, name, values):
        """Reads random ranges, which begin and end inside values and blocks."""
        whole = (self.views / "f32" / name).read_bytes()
        self.require(numpy.array_equal(bits(numpy.frombuffer(whole, "<f4")), bits(values)), f"{name}: f32")
        file = os.open(self.views / "f32" / name, os.O_RDONLY)
        direct = os.open(self.views / "f32" / name, os.O_RDONLY | os.O_DIRECT)
        for _ in range(20):
            offset = self.random.randrange(len(whole))
            length = self.random.choice([1, 5, 64, 1000, 4096, 70_001, 300_000])
            self.require(os.pread(file, length, offset) == whole[offset:offset + length], f"{name}: f32 at {offset}")
            self.require(os.pread(direct, length, offset) == whole[offset:offset + length], f"{name}: direct, {offset}")
        os.close(file)
        os.close(direct)

    def index(self, shape, step=True):
        """Returns a number or a non-empty range for each dimension."""
        index = []
        for size in shape:
            start = self.random.randrange(size)
            stop = self.random.randrange(start + 1, size + 1)
            by = self.random.choice([1, 1, 1, 2, 7, 255, 257]) if step else 1
            index.append(start if self.random.random() < 0.2 else slice(start, stop, by))
        return tuple(index)

    def slices(self, name, values):
        for _ in range(25):
            index = self.index(values.shape)
            path = self.views / "f32-slice" / name / expression(index)
            found = numpy.frombuffer(path.read_bytes(), "<f4")
            self.require(numpy.array_equal(bits(found), bits(values[index])), path)
        for _ in range(5):
            index = self.index(values.shape)
            path = self.views / "npy-f32-slice" / name / (expression(index) + ".npy")
            found = numpy.load(path)
            self.require(found.shape == values[index].shape, path)
            self.require(numpy.array_equal(bits(found), bits(values[index])), path)

    def whole_blocks(self, name, shape, raw, elements, size):
        """slice/ accepts only whole blocks."""
        blocks = numpy.frombuffer(raw, "u1").reshape(*shape[:-1], shape[-1] // elements, size)
        self.require((self.mountpoint / name).read_bytes() == raw, f"{name}: bytes")
        for _ in range(20):
            *rows, columns = self.index(blocks.shape[:-1], step=False)
            if isinstance(columns, int):
                columns = slice(columns, columns + 1, 1)
            in_elements = slice(columns.start * elements, columns.stop * elements, 1)
            path = self.views / "slice" / name / expression((*rows, in_elements))
            self.require(path.read_bytes() == blocks[(*rows, columns)].tobytes(), path)
        for begin, end in [(0, elements - 1), (1, elements), (elements // 2, elements + elements // 2), (3, 4)]:
            for expr in (f"0,0,{begin}:{end}", f":,:,{begin}:{end}", f"0:2,1,{begin}:{end}"):
                if elements == 1:
                    continue
                try:
                    os.stat(self.views / "slice" / name / expr)
                    failed = 0
                except OSError as error:
                    failed = error.errno
                self.require(failed == errno.EINVAL, f"{name}: slice {expr}")

    def stats(self, name, values):
        found = json.loads((self.views / "stats" / (name + ".json")).read_text())
        finite = values[numpy.isfinite(values)].astype("<f8")
        for key, expected in [("count", values.size), ("nan", int(numpy.isnan(values).sum())),
                              ("inf", int(numpy.isinf(values).sum())), ("zeros", int((values == 0).sum())),
                              ("min", finite.min()), ("max", finite.max())]:
            self.require(found[key] == expected, f"{name}: {key}: {found[key]}, not {expected}")
        # NumPy's own sums also round. The tolerance is a fraction of the largest value.
        largest = numpy.abs(finite).max()
        self.require(abs(found["mean"] - finite.mean()) <= 1e-12 * largest, f"{name}: mean")
        self.require(abs(found["std"] - finite.std()) <= 1e-11 * largest, f"{name}: std")


def main():
    comparison = Comparison(*map(pathlib.Path, sys.argv[1:]))
    blocks = json.loads((comparison.directory / "blocks.json").read_text())
    rows = {row["name"]: row for row in json.loads((comparison.views / "tensors.json").read_text())}
    comparison.require(rows.keys() == blocks.keys(), "the names")
    for name, (elements, size) in blocks.items():
        values = numpy.fromfile(comparison.directory / (name + ".f32"), "<f4").reshape(rows[name]["shape"])
        raw = (comparison.directory / (name + ".raw")).read_bytes()
        comparison.whole(name, values)
        comparison.parts_of_the_file(name, values)
        comparison.slices(name, values)
        comparison.whole_blocks(name, values.shape, raw, elements, size)
        if values.dtype == numpy.dtype("<f4") and not name.endswith("F64"):  # stats/ of F64 has its own digits
            comparison.stats(name, values)
    print(len(blocks), "tensors,", comparison.count, "comparisons")


main()
