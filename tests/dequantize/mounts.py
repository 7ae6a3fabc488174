"""Runs stfs and stfs-info like a user. STFS_BINARY and STFS_INFO_BINARY are the paths of the programs.

Importing this module ends the test with status 77 (skipped) if /dev/fuse is missing, or with 1 if STFS_REQUIRE_MOUNT=1.
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
HANG = 120  # seconds; every command takes less than a second
STFS = os.environ["STFS_BINARY"]
INFO = os.environ["STFS_INFO_BINARY"]

if not os.path.exists("/dev/fuse"):
    print("no /dev/fuse")
    sys.exit(1 if os.environ.get("STFS_REQUIRE_MOUNT") == "1" else SKIPPED)


def run(*command, **environment):
    """Runs a command. Returns the finished process with its output as bytes."""
    words = [str(word) for word in command]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG, env={**os.environ, **environment})


@functools.cache
def http_root():
    """Returns the URL of a web server that serves every file of this machine."""
    return object_server.serve(pathlib.Path("/"))


def info(verb, *words):
    """Returns the output of stfs-info. Any exit status other than 0 raises AssertionError."""
    done = run(INFO, verb, *words)
    if done.returncode != 0:
        raise AssertionError(f"stfs-info {verb} {words}: {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def unmount(mountpoint):
    """Unmounts, lazily if a failed test still has a file open."""
    if run(STFS, "-u", mountpoint).returncode != 0 and os.path.ismount(mountpoint):
        run(STFS, "-u", "-z", mountpoint)


@contextlib.contextmanager
def mounted(source, mountpoint, *options):
    """Mounts `source`, expects nothing on standard error, and unmounts it at the end, even after an exception."""
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


signal.signal(signal.SIGTERM, end)  # so that SIGTERM unmounts as well


def attribute(path, name):
    """Returns the attribute user.stfs.NAME as text, or None."""
    try:
        return os.getxattr(path, "user.stfs." + name).decode()
    except OSError:
        return None
