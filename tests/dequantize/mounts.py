"""Runs stfs and stfs-info as a user does. STFS_BINARY and STFS_INFO_BINARY name them.

Importing this ends the test with 77 (skipped) where there is no /dev/fuse; with STFS_REQUIRE_MOUNT=1 it fails.
"""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "docs"))
import object_server  # noqa: E402

SKIPPED = 77
HANG = 120  # seconds; nothing here takes one
STFS = os.environ["STFS_BINARY"]
INFO = os.environ["STFS_INFO_BINARY"]

if not os.path.exists("/dev/fuse"):
    print("no /dev/fuse")
    sys.exit(1 if os.environ.get("STFS_REQUIRE_MOUNT") == "1" else SKIPPED)


def run(*command, **environment):
    """The finished process, with what it wrote as bytes."""
    words = [str(word) for word in command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG, env={**os.environ, **environment})


@functools.cache
def far():
    """The URL of a web server that has every file of this machine."""
    return object_server.serve(pathlib.Path("/"))


def info(verb, *words):
    """What stfs-info prints. An exit status other than 0 is an error."""
    done = run(INFO, verb, *words)
    if done.returncode != 0:
        raise AssertionError(f"stfs-info {verb} {words}: {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def unmount(mountpoint):
    """Leaves nothing mounted, also where a test that failed has a file open."""
    if run(STFS, "-u", mountpoint).returncode != 0 and os.path.ismount(mountpoint):
        run(STFS, "-u", "-z", mountpoint)


@contextlib.contextmanager
def mounted(source, mountpoint, *options):
    """Mounts `source` without a word on standard error, and unmounts it at the end, however that comes."""
    pathlib.Path(mountpoint).mkdir(exist_ok=True)
    words = ["-o", ",".join(options)] if options else []
    try:
        done = run(STFS, *words, source, mountpoint)
        if done.returncode != 0 or done.stderr:
            raise AssertionError(f"stfs {words} {source}: {done.returncode}: {done.stderr.decode(errors='replace')}")
        yield pathlib.Path(mountpoint)
    finally:
        unmount(mountpoint)


def end(*_):
    raise SystemExit("ended by a signal")


signal.signal(signal.SIGTERM, end)  # what is mounted is unmounted on the way out


def attribute(path, name):
    """An attribute user.stfs.NAME as text; None if there is none."""
    try:
        return os.getxattr(path, "user.stfs." + name).decode()
    except OSError:
        return None
