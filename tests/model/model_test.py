"""A model of the whole product: random checkpoints, random operations, and NumPy's answer to each.

model_test.py [--seconds N] [--first SEED | --seed SEED]

A round makes a random checkpoint, mounts it, and runs 10, 40 or 80 operations on the mount, with stfs-info and with
`import stfs`, from one thread or four. It then injects a fault and runs 20 reads: each read must return the bytes of the
version that was mounted, or an error that the fault explains. The seed of a round decides everything in it except the
order in which threads run. After a failure the round is run again with fewer operations, and a shorter list that still
fails is printed with the seed. STFS_BINARY and STFS_INFO_BINARY name the programs, STFS_LIBRARY the library.
"""

import argparse
import concurrent.futures
import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback

SKIPPED = 77
try:
    import numpy  # noqa: F401
except ImportError:
    print("NumPy is not installed")
    sys.exit(SKIPPED)

import checkpoints
import operations

STFS = os.environ["STFS_BINARY"]
TOOLS = {"INFO": os.environ["STFS_INFO_BINARY"]}
if os.environ.get("STFS_LIBRARY"):
    import stfs

    TOOLS["stfs"] = stfs


class Mount:
    """Mounts some sources in the background. servers() finds the processes that serve the mount."""

    def __init__(self, sources, mountpoint, options):
        mountpoint.mkdir()
        self.mountpoint = mountpoint
        words = ["-o", ",".join(options)] if options else []
        self.output = tempfile.TemporaryFile()
        done = subprocess.run([STFS, *words, *sources, mountpoint], stdin=subprocess.DEVNULL, stdout=self.output,
                              stderr=subprocess.STDOUT, timeout=60)
        if done.returncode != 0:
            self.output.seek(0)
            raise AssertionError(f"stfs {words}: {done.returncode}: {self.output.read().decode(errors='replace')[:1000]}")

    def servers(self):
        """Returns the ids of the processes of this mount: those whose command line has the mountpoint."""
        wanted, found = os.fsencode(self.mountpoint), []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if wanted in words and words[0].endswith(b"stfs"):
                    found.append(int(entry))
        return found

    def unmount(self):
        if subprocess.run([STFS, "-u", self.mountpoint], capture_output=True).returncode != 0:
            subprocess.run([STFS, "-u", "-z", self.mountpoint], capture_output=True)
        self.output.close()


# --- faults: each returns the errnos that reads may return afterwards -------------------------------------------------


def parent_of(process):
    with open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[1])


def kill_a_worker(run, mount, rng):
    servers = mount.servers()
    for server in servers:
        if parent_of(server) in servers:
            os.kill(server, signal.SIGKILL)
    return frozenset()


def rename_sources(run, mount, rng):
    for file in files_of(run):
        file.rename(file.with_name("moved-" + file.name))
    return frozenset()


def take_permissions_away(run, mount, rng):
    for file in files_of(run):
        file.chmod(0)
    return frozenset()


def delete_sources(run, mount, rng):
    for file in files_of(run):
        file.unlink()
    return frozenset()


def rewrite_a_source(run, mount, rng):
    """Writes other bytes over a part of a source, in place."""
    file = rng.choice(files_of(run))
    size = file.stat().st_size
    with open(file, "r+b") as opened:
        opened.seek(rng.randrange(size))
        opened.write(rng.randbytes(rng.randint(1, 5000)))
    return frozenset({errno.ESTALE})


def cut_a_source(run, mount, rng):
    file = rng.choice(files_of(run))
    os.truncate(file, rng.randrange(file.stat().st_size))
    return frozenset({errno.ESTALE})


def replace_a_source(run, mount, rng):
    """A new file under the same name, as most programs save. The mount goes on with the old one."""
    file = rng.choice(files_of(run))
    other = file.with_name("other")
    other.write_bytes(rng.randbytes(1000))
    other.rename(file)
    return frozenset()


def files_of(run):
    return [file for source in run.checkpoint.sources
            for file in (sorted(source.glob("*.safetensors")) if source.is_dir() else
                         [source] if source.suffix != ".json" else sorted(source.parent.glob("*.safetensors")))]


FAULTS = [kill_a_worker, rename_sources, take_permissions_away, delete_sources, rewrite_a_source, rewrite_a_source, cut_a_source,
          replace_a_source]


# --- a round ----------------------------------------------------------------------------------------------------------


def plan_of(seed):
    """Returns the operations of a round: (name, seed) before the fault and after it."""
    rng = random.Random(seed)
    names, weights = zip(*((name, weight) for name, (weight, _) in operations.OPERATIONS.items()
                           if "stfs" in TOOLS or not name.endswith("_by_the_library")))
    reads = [operation.__name__ for _, operation in operations.READS]
    before = [(name, rng.getrandbits(32)) for name in rng.choices(names, weights, k=rng.choice([10, 40, 80]))]
    after = [(rng.choice(reads), rng.getrandbits(32)) for _ in range(20)]
    return before, after


def perform(run, name, seed):
    try:
        operations.OPERATIONS[name][1](run, random.Random(seed))
    except (OSError, AssertionError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not (isinstance(cause, OSError) and cause.errno in run.permitted):
            raise


def perform_all(run, plan, threads):
    if threads == 1:
        for name, seed in plan:
            perform(run, name, seed)
        return
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(perform, run, name, seed) for name, seed in plan]:
            done.result()


def play(seed, before, after, threads=None):
    """Plays a round in a new directory. Returns None, or a text that says what failed."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="stfs-model-") as directory:
        directory = pathlib.Path(directory)
        checkpoint = checkpoints.random_checkpoint(rng, directory / "sources")
        fault = rng.choice(FAULTS)
        options = [option for option in ("views=visible", "page_cache=direct", "prefetch=all") if rng.random() < 0.2]
        if fault is kill_a_worker:
            options.append("supervise")
        threads = threads or rng.choice([1, 4])
        what = f"{checkpoint.format}, {len(checkpoint.tensors)} tensors, options {options}, threads {threads}"
        mount = None
        try:
            mount = Mount(checkpoint.sources, directory / "mnt", options)
            run = operations.Run(checkpoint, directory / "mnt", directory, TOOLS, "views=visible" in options)
            perform_all(run, before, threads)
            if after:
                what += f", then {fault.__name__}"
                run.permitted = fault(run, mount, rng)
                perform_all(run, after, threads)
        except Exception:  # noqa: BLE001: a Python error of an operation is a failure, too
            return f"{what}\n{traceback.format_exc(limit=-3)}"
        finally:
            if mount:
                mount.unmount()
    return None


def shrink(seed, before, after, until):
    """Leaves out operations as long as the round still fails."""
    failure = None
    if not play(seed, before, [], 1):
        failure = play(seed, before, after, 1)
    else:
        after = []
    for size in (32, 16, 8, 4, 2, 1):
        for part in (0, 1):
            at = 0
            while at < len((before, after)[part]) and time.monotonic() < until:
                shorter = [list(before), list(after)]
                del shorter[part][at : at + size]
                if shorter[part] != (before, after)[part] and (said := play(seed, *shorter, 1)):
                    (before, after), failure = shorter, said
                else:
                    at += size
    return before, after, failure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--first", type=int, help="the seed of the first round; the next ones follow (default: random)")
    parser.add_argument("--seed", type=int, help="play only the round of this seed")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    first = next((seed for seed in (words.seed, words.first) if seed is not None), random.SystemRandom().getrandbits(40))
    end, rounds, done = time.monotonic() + words.seconds, 0, 0
    while rounds == 0 or (words.seed is None and time.monotonic() < end):
        seed = first + rounds
        before, after = plan_of(seed)
        failure = play(seed, before, after)
        if failure:
            print(f"FAILED: model_test.py --seed {seed}\n{failure}", flush=True)
            before, after, shorter = shrink(seed, before, after, time.monotonic() + 60)
            print(f"The shortest list that fails: {before} then {after}\n{shorter or 'It does not fail with one thread.'}")
            return 1
        rounds, done = rounds + 1, done + len(before) + len(after)
    print(f"{rounds} rounds from seed {first}, {done} operations, no difference")
    return 0


if __name__ == "__main__":
    if not os.path.exists("/dev/fuse"):
        print("no /dev/fuse")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_MOUNT") == "1" else SKIPPED)
    sys.exit(main())
