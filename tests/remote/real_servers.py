"""Starts real servers on free ports for the tests with the label "servers", and stops them at the end."""

import json
import os
import shlex
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HANG = 300  # seconds after which a program counts as hanging


class Server:
    """A server of tests/remote/servers. A separate process stops it when the pipe from this process
    closes, so the server also stops if this process is killed."""

    def __init__(self, name, directory, *options, **environment):
        script = os.path.join(HERE, "servers", name)
        self.directory = os.path.join(directory, name)
        environment = {**os.environ, **environment, "DIR": self.directory}
        self.guard = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; exec "$0" stop', script], env=environment,
            stdin=subprocess.PIPE, start_new_session=True)
        for attempt in range(3):  # another process may take a port that was free
            started = subprocess.run([script, "start", *options], env=environment, timeout=HANG,
                                     stdout=subprocess.PIPE, text=True, check=attempt == 2)
            if started.returncode == 0:
                break
        for word in shlex.split(started.stdout):
            name, value = word.split("=", 1)
            setattr(self, name.lower(), value)

    def stop(self):
        self.guard.stdin.close()
        self.guard.wait(HANG)


class Gateway:
    """An S3 gateway, nginx as its https proxy, and a client that writes objects."""

    def __init__(self, *options):
        import boto3  # only some of the tests need it
        import botocore

        self.directory = tempfile.TemporaryDirectory(prefix="stfs-servers-")
        self.servers = []
        try:
            self.rgw = self.start("radosgw", *options)
            self.endpoint = "http://127.0.0.1:" + self.rgw.rgw_port
            self.nginx = self.start("nginx", UPSTREAM=self.endpoint)
        except BaseException:
            self.stop()
            raise
        self.tls_endpoint = "https://127.0.0.1:" + self.nginx.nginx_tls_port
        self.client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id=self.rgw.rgw_access, aws_secret_access_key=self.rgw.rgw_secret,
            config=botocore.config.Config(s3={"addressing_style": "path"}, proxies={}))

    def start(self, name, *options, **environment):
        server = Server(name, self.directory.name, *options, **environment)
        self.servers.append(server)
        return server

    def stop(self):
        for server in reversed(self.servers):
            server.stop()
        self.directory.cleanup()

    def environment(self, **changes):
        """Returns the environment of a program that reads from the gateway. A value of None removes a variable."""
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith("AWS_") and not name.lower().endswith("_proxy")}
        result.update(HOME=self.directory.name, AWS_EC2_METADATA_DISABLED="true",
                      AWS_ENDPOINT_URL_S3=self.endpoint, AWS_ACCESS_KEY_ID=self.rgw.rgw_access,
                      AWS_SECRET_ACCESS_KEY=self.rgw.rgw_secret)
        result.update(changes)
        return {name: value for name, value in result.items() if value is not None}

    def run(self, *words, **changes):
        return subprocess.run(words, env=self.environment(**changes), timeout=HANG,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)

    def put(self, bucket, key, body, **options):
        return self.client.put_object(Bucket=bucket, Key=key, Body=body, **options)


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def sharded_checkpoint():
    """Returns the files of a checkpoint with three shards, and the bytes of its tensors."""
    tensors = {f"layers.{i}.weight": bytes((7 * i + j) % 251 for j in range(400_000))
               for i in range(6)}
    files, weight_map = {}, {}
    for shard in range(3):
        name = f"model-{shard + 1:05}-of-00003.safetensors"
        names = list(tensors)[2 * shard:2 * shard + 2]
        files[name] = safetensors({n: ("U8", [len(tensors[n])], tensors[n]) for n in names})
        weight_map.update({n: name for n in names})
    files["model.safetensors.index.json"] = json.dumps(
        {"metadata": {}, "weight_map": weight_map}).encode()
    files["config.json"] = b"{}"
    return files, tensors
