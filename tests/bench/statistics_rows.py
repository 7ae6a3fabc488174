"""The rows of statistics: `stfs-info stats` and `stfs-info report` compared with NumPy. bench.py runs them."""
import json
import shutil
import struct
import subprocess
import time

try:
    import numpy
except ImportError:
    numpy = None

ELEMENTS = 1 << 24  # elements of a tensor


def to_bf16(values):
    return (values.view("<u4") >> 16).astype("<u2")


def to_f16(values):
    return values.astype("<f2")


class Statistics:
    """Tensors like in a real model, without NaN and all different."""

    def __init__(self, bench):
        self.bench = bench
        self.count = max(2, bench.size.sample // (2 * ELEMENTS))

    def all(self):
        rows = {"BF16": to_bf16, "F16": to_f16}
        for dtype, convert in rows.items():
            stats = f"`stfs-info stats` of {dtype}, in the page cache"
            report = f"`stfs-info report` of {dtype}, in the page cache"
            if not self.bench.table.wants(stats) and not self.bench.table.wants(report):
                continue
            peer = "NumPy's min, max, mean, std and count_nonzero of float32 copies"
            if numpy is None:
                self.bench.table.skip(stats, peer, "no NumPy")
                continue
            self.measure(dtype, convert, stats, report, peer)

    def values(self, number):
        return numpy.random.default_rng(number).standard_normal(ELEMENTS, dtype="float32") * numpy.float32(0.02)

    def checkpoint(self, dtype, convert):
        path = self.bench.directory / f"statistics-{dtype}.safetensors"
        size = 2 * ELEMENTS
        header = json.dumps({f"layers.{i}.weight": {"dtype": dtype, "shape": [ELEMENTS >> 12, 1 << 12],
                                                    "data_offsets": [i * size, (i + 1) * size]}
                             for i in range(self.count)}).encode()
        if not path.exists():
            partial = path.with_suffix(".partial")
            with partial.open("wb") as out:
                out.write(struct.pack("<Q", len(header)) + header)
                for i in range(self.count):
                    out.write(convert(self.values(i)).tobytes())
            partial.rename(path)
        return path

    def measure(self, dtype, convert, stats, report, peer):
        table, programs = self.bench.table, self.bench.programs
        path = self.checkpoint(dtype, convert)
        copies = [self.values(i) for i in range(self.count)]
        page = self.bench.directory / "report.html"

        def by_numpy():
            begin = time.perf_counter()
            for values in copies:
                values.min(), values.max(), values.mean(), values.std(), numpy.count_nonzero(values)
            return time.perf_counter() - begin

        def run(*arguments):
            begin = time.perf_counter()
            subprocess.run([programs.info, *arguments], check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begin

        def by_stats():
            return run("stats", path)

        def by_report():
            return run("report", "--force", path, "-o", page)

        table.speed(stats, peer, ">= 3", by_stats, by_numpy)
        table.speed(report, peer, "", by_report, by_numpy)
        table.speed(report, "`stfs-info stats` of them", "", by_report, by_stats)
        if dtype == "BF16" and table.wants(report):
            seconds = [by_report() for _ in range(self.bench.size.rounds + 1)][1:]
            table.add(report, "GB a second", ">= 1.8", [path.stat().st_size / 1e9 / each for each in seconds])
            self.run_of_ten(path, run)

    def run_of_ten(self, path, run):
        """Compares a page of ten versions with ten reports of one version."""
        directory = self.bench.directory / "versions"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        versions = [directory / f"step-{step:02}.safetensors" for step in range(10)]
        for version in versions:
            shutil.copyfile(path, version)
        page = self.bench.directory / "report.html"
        self.bench.table.time("`stfs-info report` of ten versions in one page", "a report of each", "<= 1.3",
                              lambda: run("report", "--force", *versions, "-o", page),
                              lambda: sum(run("report", "--force", version, "-o", page) for version in versions))
        shutil.rmtree(directory)
