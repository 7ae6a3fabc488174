#!/usr/bin/env python3
"""over_test.py https|s3 BINARY FILTER: runs mount tests over a network, against real servers.

It runs tests of tests/mount, and tests/support/elsewhere.h turns their sources into URLs. For https, nginx serves the
whole file system of this machine with a certificate from its own authority. For s3, boto3 uploads each source to Ceph's
gateway before a test reads it. Both servers listen on free ports of loopback, and this script stops them.

Exits with 77 if the servers are not installed. With STFS_REQUIRE_SERVERS=1 that is a failure.
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

from real_servers import Server

SKIPPED = 77
BUCKET = "stfs-tests"


def missing(kind):
    programs = {"https": ["nginx", "openssl"], "s3": ["radosgw", "ceph-osd", "ceph-mon"]}[kind]
    return [program for program in programs if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")]


# Asks this process to upload a path to the gateway, because importing boto3 takes longer than most tests.
ASK = """#!/usr/bin/python3 -ISB
import socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({socket!r})
    asked.sendall(sys.argv[1].encode())
    asked.shutdown(socket.SHUT_WR)
    answer = asked.makefile().read()
sys.exit(answer or 0)
"""


def serve_puts(directory, environment):
    """Makes the bucket, and returns a program that uploads a file, or the files of a directory, to it."""
    import boto3
    os.environ.update({name: value for name, value in environment.items() if name.startswith("AWS_")})
    s3 = boto3.client("s3", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name="us-east-1")
    s3.create_bucket(Bucket=BUCKET)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(directory / "puts"))
    listening.listen()

    def serve():
        while True:
            asked, _ = listening.accept()
            with asked:
                try:
                    put(s3, pathlib.Path(asked.makefile().read()))
                except Exception as error:  # the test that asked reports it
                    asked.sendall(repr(error).encode())

    threading.Thread(target=serve, daemon=True).start()
    program = directory / "put"
    program.write_text(ASK.format(socket=str(directory / "puts")))
    program.chmod(0o755)
    return program


def put(s3, path):
    """Uploads a file. For a directory, uploads its files; for the index of shards, all files of its directory."""
    files = [path]
    if path.is_dir() or path.name.endswith(".index.json"):
        files = [file for file in (path if path.is_dir() else path.parent).rglob("*") if file.is_file()]
    for file in files:
        with open(file, "rb") as body:
            s3.put_object(Bucket=BUCKET, Key=str(file)[1:], Body=body)


def main():
    kind, binary, tests = sys.argv[1:]
    if absent := missing(kind):
        print(f"not installed: {' '.join(absent)}")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_SERVERS") == "1" else SKIPPED)
    with tempfile.TemporaryDirectory(prefix="stfs-over-") as work:
        work = pathlib.Path(work)
        (work / "cache").mkdir(mode=0o700)
        # The certificate variables of this machine must not override the ones of the test.
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
                    STFS_TESTS_OVER=f"s3://{BUCKET}", AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.rgw_port}",
                    AWS_ACCESS_KEY_ID=server.rgw_access, AWS_SECRET_ACCESS_KEY=server.rgw_secret, AWS_EC2_METADATA_DISABLED="true")
                environment["STFS_TESTS_PUT"] = str(serve_puts(work, environment))
            done = subprocess.run([binary, f"--gtest_filter={tests}", "--gtest_brief=1"], env=environment, check=False)
            sys.exit(done.returncode)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
