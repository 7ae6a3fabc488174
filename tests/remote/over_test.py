#!/usr/bin/env python3
"""over_test.py https|s3 BINARY FILTER: runs mount tests over a network, against real servers.

The tests are those of tests/mount: tests/support/elsewhere.h turns their sources into URLs. For https, nginx serves the
whole file system of this machine with a certificate of its own authority; for s3, Ceph's gateway gets each source before
it is read. Both listen on free ports of loopback and are stopped here.

Exits with 77 where the servers are not installed; STFS_REQUIRE_SERVERS=1 makes that a failure.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SERVERS = pathlib.Path(__file__).resolve().parent / "servers"
SKIPPED = 77


def missing(kind):
    programs = {"https": ["nginx", "openssl"], "s3": ["radosgw", "ceph-osd", "ceph-mon"]}[kind]
    return [program for program in programs if not shutil.which(program)]


def put_program(directory):
    """A program that brings a file, or the files of a directory, to the gateway."""
    path = directory / "put"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {SERVERS}/put.py stfs-tests \"$1\"\n")
    path.chmod(0o755)
    return path


def main():
    kind, binary, tests = sys.argv[1:]
    if absent := missing(kind):
        print(f"not installed: {' '.join(absent)}")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_SERVERS") == "1" else SKIPPED)
    with tempfile.TemporaryDirectory(prefix="stfs-over-") as work:
        work = pathlib.Path(work)
        (work / "cache").mkdir(mode=0o700)
        environment = dict(os.environ, STFS_CACHE=str(work / "cache"), DIR=str(work / "server"))
        script = SERVERS / {"https": "nginx", "s3": "radosgw"}[kind]
        try:
            if kind == "https":
                environment["ROOT"] = "/"
            said = subprocess.run([script, "start"], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            for line in said.splitlines():
                name, _, value = line.partition("=")
                environment[name] = value
            if kind == "https":
                environment["STFS_TESTS_OVER"] = environment["HTTPS_URL"]
                environment["SSL_CERT_FILE"] = environment["CA"]
            else:
                environment["STFS_TESTS_OVER"] = "s3://stfs-tests"
                environment["STFS_TESTS_PUT"] = str(put_program(work))
            done = subprocess.run([binary, f"--gtest_filter={tests}", "--gtest_brief=1"], env=environment, check=False)
            sys.exit(done.returncode)
        finally:
            subprocess.run([script, "stop"], env=environment, check=False)


if __name__ == "__main__":
    main()
