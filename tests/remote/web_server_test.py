#!/usr/bin/env python3
"""stfs-info with nginx over TLS: trusted certificates, redirects and proxies.

STFS_INFO_BINARY names stfs-info, and STFS_TEST_DATA names the directory tests/data. Exits with 77 if nginx is not
installed. With STFS_REQUIRE_SERVERS=1 that is a failure.
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HANG = 300  # seconds after which a program counts as hanging
NAME = "m.safetensors"
OURS = ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
        "ALL_PROXY", "no_proxy", "NO_PROXY", "NETRC")


class Proxy:
    """A proxy that connects every host to this machine and keeps the heads of the requests that it received."""

    def __init__(self):
        self.heads = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(65536)
            if not more:
                return
            head += more
        self.heads.append(head.decode("latin-1"))
        method, target, _ = head.split(b" ", 2)
        if method == b"CONNECT":
            server = socket.create_connection(("127.0.0.1", int(target.rsplit(b":", 1)[1])))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            host, path = target.split(b"://", 1)[1].split(b"/", 1)
            server = socket.create_connection(("127.0.0.1", int(host.rsplit(b":", 1)[1])))
            server.sendall(head.replace(target, b"/" + path, 1))
        threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
        self.copy(client, server)

    @staticmethod
    def copy(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class WebServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory(prefix="stfs-web-")
        cls.addClassCleanup(cls.work.cleanup)
        cls.directory = pathlib.Path(cls.work.name)
        nginx = HERE / "servers" / "nginx"
        environment = dict(os.environ, DIR=str(cls.directory / "server"))
        cls.addClassCleanup(subprocess.run, [nginx, "stop"], env=environment, check=False)
        said = subprocess.run([nginx, "start"], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        cls.server = dict(line.split("=", 1) for line in said.splitlines())
        shutil.copy(pathlib.Path(os.environ["STFS_TEST_DATA"]) / "single" / "dtypes.safetensors",
                    pathlib.Path(cls.server["NGINX_ROOT"]) / NAME)
        cls.ca, cls.port = cls.server["NGINX_CA"], cls.server["NGINX_TLS_PORT"]

    def check(self, url, *options, **environment):
        """Returns the output of stfs-info for a URL, without the URL: "ok ..." or "error ..."."""
        clean = {name: value for name, value in os.environ.items() if name not in OURS}
        with tempfile.TemporaryDirectory(prefix="stfs-web-") as cache:
            clean.update(STFS_CACHE=cache, HOME=self.work.name, **environment)
            done = subprocess.run([os.environ["STFS_INFO_BINARY"], "check", *options, url], env=clean, timeout=HANG,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        self.assertTrue(done.stdout.startswith(url), done.stdout)
        return done.stdout[len(url) + 1:].replace("\t", " ").rstrip("\n")

    def url(self, path=NAME, host="localhost"):
        return f"https://{host}:{self.port}/{path}"

    def test_each_variable_can_name_authority(self):
        directory = self.directory / "authorities"
        directory.mkdir()
        shutil.copy(self.ca, directory / "ca.pem")
        subprocess.run(["openssl", "rehash", directory], check=True)
        for variable, value in (("SSL_CERT_FILE", self.ca), ("CURL_CA_BUNDLE", self.ca), ("SSL_CERT_DIR", str(directory))):
            self.assertEqual(self.check(self.url(), **{variable: value}), "ok 36 tensors", variable)

    def test_other_certificate_is_not_trusted(self):
        begin = f"error Unreadable cannot trust localhost:{self.port}: "
        self.assertTrue(self.check(self.url()).startswith(begin))
        self.assertTrue(self.check(self.url(), SSL_CERT_FILE="/none").startswith(begin))
        other = self.directory / "other.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                        "/CN=other", "-keyout", self.directory / "other.key", "-out", other], check=True,
                       stderr=subprocess.DEVNULL)
        self.assertIn(f": checked with the certificates of {other}", self.check(self.url(), SSL_CERT_FILE=str(other)))

    def test_certificate_for_other_name_is_not_trusted(self):
        proxy = Proxy()
        said = self.check(self.url(host="other.test"), SSL_CERT_FILE=self.ca, https_proxy=proxy.url)
        self.assertIn("cannot trust other.test", said)
        self.assertIn("name", said)

    def test_redirect_to_http_is_refused(self):
        said = self.check(self.url("to_http/" + NAME), SSL_CERT_FILE=self.ca)
        self.assertEqual(said, "error Unreadable redirects from https to http")

    def test_proxy_sees_no_secret_and_is_not_used_for_no_proxy(self):
        (self.directory / "netrc").write_text("machine hub.test login me password secret\n")
        environment = {"SSL_CERT_FILE": self.ca, "NETRC": str(self.directory / "netrc")}
        proxy = Proxy()
        said = self.check(self.url(host="hub.test"), https_proxy=proxy.url, **environment)
        self.assertEqual(said, "ok 36 tensors")
        self.assertEqual(len(proxy.heads), 1)
        self.assertTrue(proxy.heads[0].startswith(f"CONNECT hub.test:{self.port} "), proxy.heads)
        plain = f"http://hub.test:{self.server['NGINX_PORT']}/{NAME}"
        said = self.check(plain, "--insecure-http", http_proxy=proxy.url, **environment)
        self.assertEqual(said, "ok 36 tensors")
        self.assertEqual(len(proxy.heads), 2)
        self.assertNotIn("authorization", "".join(proxy.heads).lower())
        said = self.check(self.url(host="hub.test"), https_proxy=proxy.url, no_proxy="hub.test", **environment)
        self.assertEqual(said, "error Unreadable cannot find the address of hub.test")
        self.assertEqual(self.check(self.url(), https_proxy=proxy.url, **environment), "ok 36 tensors")
        self.assertEqual(len(proxy.heads), 2, "loopback has no proxy")


if __name__ == "__main__":
    if not shutil.which("nginx"):
        print("not installed: nginx")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_SERVERS") == "1" else 77)
    unittest.main(warnings="ignore")
