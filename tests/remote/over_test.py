#!/usr/bin/env python3
"""over_test.py https|s3 BINARY FILTER: runs mount tests over a network, against real servers.

The tests are those of tests/mount: tests/support/elsewhere.h turns their sources into URLs. For https, nginx serves the
whole file system of this machine with a certificate of its own authority; for s3, Ceph's gateway gets each source before
it is read; boto3 puts it there. Both listen on free ports of loopback and are stopped here.

Exits with 77 where the servers are not installed; STFS_REQUIRE_SERVERS=1 makes that a failure.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from real_servers import Server

SKIPPED = 77
BUCKET = "stfs-tests"


def missing(kind):
    programs = {"https": ["nginx", "openssl"], "s3": ["radosgw", "ceph-osd", "ceph-mon"]}[kind]
    return [program for program in programs if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")]


def put_program(directory):
    """A program that brings a file, or the files of a directory, to the gateway: stfs's tests call it with the path."""
    path = directory / "put"
    path.write_text(f"#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} put \"$1\"\n")
    path.chmod(0o755)
    return path


def client(environment):
    import boto3
    return boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1")


def make_bucket(environment):
    os.environ.update({name: value for name, value in environment.items() if name.startswith("AWS_")})
    client(environment).create_bucket(Bucket=BUCKET)


def put(path):
    """Of a shard's index, all that lies beside it."""
    path = pathlib.Path(path)
    files = [path]
    if path.is_dir() or path.name.endswith(".index.json"):
        files = [file for file in (path if path.is_dir() else path.parent).rglob("*") if file.is_file()]
    s3 = client(os.environ)
    for file in files:
        with open(file, "rb") as body:
            s3.put_object(Bucket=BUCKET, Key=str(file)[1:], Body=body)


def main():
    if sys.argv[1] == "put":
        return put(sys.argv[2])
    kind, binary, tests = sys.argv[1:]
    if absent := missing(kind):
        print(f"not installed: {' '.join(absent)}")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_SERVERS") == "1" else SKIPPED)
    with tempfile.TemporaryDirectory(prefix="stfs-over-") as work:
        work = pathlib.Path(work)
        (work / "cache").mkdir(mode=0o700)
        # What this machine trusts and asks in its own name must not stand before what the test sets.
        ours = ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
        theirs = {name: value for name, value in os.environ.items() if name not in ours}
        environment = dict(theirs, STFS_CACHE=str(work / "cache"))
        server = Server({"https": "nginx", "s3": "radosgw"}[kind], str(work))
        try:
            if kind == "https":
                (pathlib.Path(server.nginx_root) / "all").symlink_to("/")
                environment["STFS_TESTS_OVER"] = f"https://localhost:{server.nginx_tls_port}/all"
                environment["SSL_CERT_FILE"] = server.nginx_ca
            else:
                environment.update(
                    STFS_TESTS_OVER=f"s3://{BUCKET}", STFS_TESTS_PUT=str(put_program(work)),
                    AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.rgw_port}", AWS_ACCESS_KEY_ID=server.rgw_access,
                    AWS_SECRET_ACCESS_KEY=server.rgw_secret, AWS_EC2_METADATA_DISABLED="true")
                make_bucket(environment)
            done = subprocess.run([binary, f"--gtest_filter={tests}", "--gtest_brief=1"], env=environment, check=False)
            sys.exit(done.returncode)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
