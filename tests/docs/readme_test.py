"""readme_test.py BUILD SOURCE: pastes the examples of README.md and docs/EXAMPLES.md into a shell, word for word.

Only places are replaced: /mnt, the home directory, and https://host. The Hub and S3 are servers on loopback that the
environment names. Each line of a block is one command, which bash runs in a directory with the checkpoints that README
names. In a listing (```console) each line after "$ " is a command, which must print the tensors in the first column.

The lines under "Install" are run by scripts/package --test, in clean chroots. Continuous integration runs
./scripts/quickstart and ./scripts/test.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import object_server

SKIPPED = 77  # CTest's SKIP_RETURN_CODE

# The exit status of a command that finds a difference or a NaN.
STATUS = [
    (r"stfs-info stats --nonfinite", 1),
    (r"stfs-info diff ", 1),
]

# What is mounted at /mnt/w under a heading, if not model.safetensors.
MOUNTED = {"Convert": "model.safetensors.index.json", "From any language": "w.safetensors"}

# README's block for Python: any source can stand there.
ANY_SOURCE = 'stfs.open("model.safetensors", dequantize="bf16")["lm_head.weight"]'

# What each block must print: it shows that the command did its work.
EXPECTED = {
    "stfs": ["lm_head.weight", "0000000", "[["],
    "Inspect": ["ok", "lm_head.weight: OK"],
    "Slice": [],
    "Remote checkpoints": ["hf://org/model@", "s3://bucket/model", "/models/model"],
    "Quantised checkpoints": [],
    "Edit": ["xor"],
    "Load into device memory": [],
    "In one line": ["model.norm.weight"],
    "Sources": ["lm_head.weight", "BF16", "8196"],
    "Values": ['user.stfs.dtype="BF16"', '"nan"', "model.norm.weight"],
    "Convert": [],
    "Device memory": ["cpu", "lm_head.weight"],
    "From any language": [],
}


def bf16(count, seed):
    """`count` BF16 numbers between 0.5 and 2, as bytes."""
    numbers = bytearray()
    for i in range(count):
        numbers += struct.pack("<H", 0x3F00 + (i * 37 + seed) % 256)
    return bytes(numbers)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def model(seed):
    tensors = {
        "lm_head.weight": ("BF16", [128, 64], bf16(128 * 64, 1)),
        "model.embed_tokens.weight": ("BF16", [128, 64], bf16(128 * 64, 2)),
        "model.norm.weight": ("BF16", [64], bf16(64, seed)),
    }
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = ("BF16", [64], bf16(64, 3))
        tensors[prefix + "mlp.up_proj.weight"] = ("BF16", [32, 64], bf16(32 * 64, layer))
    return tensors


def make_checkpoints(work, source):
    (work / "fp8").mkdir()
    good = model(4)
    bad = dict(good)
    bad["model.norm.weight"] = ("BF16", [64], b"\xc0\x7f" + bf16(63, 4))  # begins with a NaN
    write_safetensors(work / "model.safetensors", bad)
    write_safetensors(work / "old.safetensors", good)
    write_safetensors(work / "new.safetensors", {**bad, "model.extra": ("F32", [1], b"abcd")})
    write_safetensors(work / "base.safetensors", good)
    write_safetensors(work / "adapter.safetensors", {"lora.a": ("F32", [4], struct.pack("<4f", 1, 2, 3, 4))})
    write_safetensors(work / "vlm.safetensors", {**good, "vision_tower.w": ("F32", [1], b"abcd")})
    (work / "adapter").mkdir()
    (work / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    up_proj = "base_model.model.model.layers.0.mlp.up_proj."
    write_safetensors(work / "adapter/adapter_model.safetensors", {
        up_proj + "lora_A.weight": ("BF16", [2, 64], bf16(2 * 64, 5)), up_proj + "lora_B.weight": ("BF16", [32, 2], bf16(32 * 2, 6))})
    for version in (1, 2):
        directory = work / f"run/weight_v{version:06}"
        directory.mkdir(parents=True)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {}, "metadata": {
            "version": f"{version:06}", "base_version": f"{version - 1:06}", "delta_encoding": "xor", "compression_format": "zstd",
            "checksum_format": "adler32"}}))
    write_safetensors(work / "w.safetensors", {"w": ("F32", [16, 4096], os.urandom(16 * 4096 * 4))})
    write_safetensors(work / "fp8/model.safetensors", {
        "lm_head.weight": ("F8_E4M3", [128, 64], os.urandom(128 * 64)),
        "lm_head.weight_scale_inv": ("F32", [1, 1], struct.pack("<f", 0.5))})
    (work / "fp8/config.json").write_text(json.dumps({"quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}))
    shutil.copy(source / "tests/data/gguf/llama-2-tiny-random.gguf", work / "model.gguf")
    snapshot = work / ".cache/huggingface/hub/models--x--y/snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    names = sorted(good)
    weight_map = {}
    for i, part in enumerate((names[:3], names[3:])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        write_safetensors(work / file, {name: good[name] for name in part})
        shutil.copy(work / file, snapshot / file)
        weight_map.update({name: file for name in part})
    for directory in (work, snapshot):
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


# Variables that would lead away from the servers of this test.
ELSEWHERE = re.compile("(HF|HUGGING|AWS|SSL|CURL)_|STFS_CACHE|NETRC|XDG_CACHE_HOME|.*_proxy", re.IGNORECASE)


def start_servers(work, source, environment):
    """Serves checkpoints of `work` as the Hub's org/model, as s3://bucket/model and below /models/."""
    objects = work / "objects"
    for directory in (work / "hub/org/model", objects / "bucket/model", objects / "models"):
        directory.mkdir(parents=True)
        for name in ("model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            shutil.copy(work / name, directory)
    (objects / "bucket/broken").mkdir()
    shutil.copy(work / "model.safetensors", objects / "bucket/broken")
    shutil.copytree(work / "fp8", work / "hub/org/model-FP8")
    pickled = work / "hub/org/pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    shutil.copy(source / "tests/fuzz/seeds/archive_fuzz/torch.pt", pickled / "pytorch_model.bin")
    hub = subprocess.Popen([sys.executable, "-B", source / "tests/remote/servers/hub.py", work / "hub"],
                           stdout=subprocess.PIPE, text=True)
    for name in [name for name in environment if ELSEWHERE.match(name)]:
        del environment[name]
    url = object_server.serve(objects)
    environment.update(HF_ENDPOINT=json.loads(hub.stdout.readline())["hub"], AWS_ENDPOINT_URL=url, AWS_REGION="us-east-1",
                       AWS_ACCESS_KEY_ID="AKID", AWS_SECRET_ACCESS_KEY="secret", STFS_CACHE=str(work / "cache"))
    return hub, url


def blocks_of(readme):
    """(heading, language, lines) of each block."""
    heading = "stfs"
    lines = iter(readme.splitlines())
    for line in lines:
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif line.startswith("```"):
            block = []
            for inner in lines:
                if inner.startswith("```"):
                    break
                block.append(inner)
            yield heading, line[3:], block


class Readme:
    def __init__(self, build, source, work):
        self.work = work
        self.mnt = work / "mnt"
        for name in ("w", "a", "b"):
            (self.mnt / name).mkdir(parents=True)
        self.programs = {
            "stfs": build / "fs/stfs",
            "stfs-info": build / "tools/stfs-info",
            "stfs-gpu": build / "tools/gpu/stfs-gpu",
        }
        directory = work / "bin"
        directory.mkdir()
        for name, program in self.programs.items():
            (directory / name).symlink_to(program)
        (directory / "python3").symlink_to(sys.executable)
        (work / "run").mkdir(mode=0o700)
        self.environment = dict(
            os.environ,
            HOME=str(work),
            PATH=f"{directory}:{os.environ['PATH']}",
            XDG_RUNTIME_DIR=str(work / "run"),
            PYTHONPATH=f"{source}/tools/library/python",
            PYTHONDONTWRITEBYTECODE="1",
            STFS_LIBRARY=str(build / "tools/library/libstfs.so"),
        )
        self.environment.pop("STFS_GPU_SOCKET", None)
        self.web = ""
        self.any_source = False
        self.failures = 0

    def call(self, command, status=0):
        done = subprocess.run(command, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace")
        if done.returncode != status:
            self.failures += 1
            print(f"FAILED: {command[-1]}\n  exit status {done.returncode}, expected {status}\n"
                  f"  {done.stdout[-2000:]}\n  {done.stderr[-2000:]}")
        return done.stdout + done.stderr

    def paste(self, line):
        status = next((status for pattern, status in STATUS if re.match(pattern, line)), 0)
        line = line.replace("/mnt/", f"{self.mnt}/").replace("https://host", self.web)
        line = line.replace("follow run |", "follow run --latest |")  # which ends
        return self.call(["bash", "-c", line], status)

    def mount(self, source, name):
        self.call(["stfs", str(self.work / source), str(self.mnt / name)])

    def unmount(self, name):
        path = str(self.mnt / name)
        mounted = any(f" {path} " in line for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines())
        if mounted:
            self.call(["stfs", "-u", path])

    def run(self, heading, language, lines):
        if language == "sh":
            return "".join(self.paste(line) for line in lines)
        text = "\n".join(lines).replace("/mnt/", f"{self.mnt}/")
        if ANY_SOURCE in text:
            for source in ("model.safetensors", "hf://org/model-FP8", "s3://bucket/model",
                           f"{self.web}/models/model.safetensors.index.json"):
                output = self.call(["python3", "-c", text.replace("model.safetensors", source)])
                if not output.startswith("(4, 64) b'"):
                    self.failures += 1
                    print(f"FAILED: {source}: {output[-3000:]}")
            self.any_source = True
            return ""
        if language == "python":
            return self.call(["python3", "-c", text])
        if language == "perl":
            return self.call(["perl", "-e", text])
        if language == "c":
            includes = "".join(f"#include <{name}>\n" for name in ("fcntl.h", "stdio.h", "sys/mman.h", "sys/stat.h"))
            (self.work / "a.c").write_text(includes + "int main(void) {\n" + text + '\nprintf("%f\\n", w[0]);\n}\n')
            return self.call(["sh", "-c", "cc a.c -o a.out && ./a.out"])
        return ""  # a listing, or a language that is not installed

    def expect(self, heading, output):
        for text in EXPECTED.get(heading, ["a block under this heading has no row in EXPECTED"]):
            if text not in output:
                self.failures += 1
                print(f"FAILED: the block under {heading!r} does not print {text!r}:\n{output[-3000:]}")

    def paste_elsewhere(self, line):
        """Pastes a line; if it mounts, compares a tensor with that of the local checkpoint, and unmounts."""
        output = self.paste(line)
        if line.startswith("stfs "):
            self.mount("model.safetensors.index.json", "a")
            self.call(["sh", "-c", f"cmp {self.mnt}/w/lm_head.weight {self.mnt}/a/lm_head.weight"])
            self.unmount("a")
            self.unmount("w")
        return output

    def run_listing(self, lines):
        """Runs the commands of a listing, and looks in their output for the tensors that it shows."""
        output = ""
        for line in lines:
            if line.startswith("$ ./scripts/"):
                return  # see above
            if line.startswith("$ "):
                output = self.paste(line[2:])
            elif line and "." in line.split()[0] and line.split()[0] not in output.split():
                self.failures += 1
                print(f"FAILED: {line.split()[0]!r} is not printed:\n{output[-3000:]}")

    def walk(self, readme):
        seen = set()
        for heading, language, lines in blocks_of(readme):
            if heading == "Install" or language == "":
                continue
            if language == "console":
                self.run_listing(lines)
                continue
            if heading == "Mount":
                for line in lines:
                    if "allow_other" in line and os.geteuid() != 0:
                        continue  # needs user_allow_other in /etc/fuse.conf
                    self.paste(line)
                    self.call(["sh", "-c", f"test -e {self.mnt}/w/lm_head.weight"])
                    self.unmount("w")
                continue
            if heading == "Remote checkpoints":
                output = "".join(self.paste_elsewhere(line) for line in lines)
                seen.add(heading)
                self.expect(heading, output)
                continue
            if heading not in ("stfs", "Quantised checkpoints"):  # they mount w themselves
                self.mount(MOUNTED.get(heading, "model.safetensors"), "w")
            self.mount("old.safetensors", "a")
            self.mount("new.safetensors", "b")
            output = self.run(heading, language, lines)
            for name in ("w", "a", "b"):
                self.unmount(name)
            if language != "sh":
                continue
            seen.add(heading)
            self.expect(heading, output)
        if not self.any_source:
            self.failures += 1
            print(f"FAILED: no block has {ANY_SOURCE}")
        for heading in EXPECTED.keys() - seen:
            self.failures += 1
            print(f"FAILED: there is no block under {heading!r}")


def main():
    build, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    if not os.path.exists("/dev/fuse"):
        print("no /dev/fuse")
        sys.exit(1 if os.environ.get("STFS_REQUIRE_MOUNT") == "1" else SKIPPED)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name).resolve()
        test = Readme(build, source, work)
        make_checkpoints(work, source)
        hub, test.web = start_servers(work, source, test.environment)
        holder = subprocess.Popen([str(test.programs["stfs-gpu"]), "holder"], env=test.environment, cwd=work)
        try:
            test.walk((source / "README.md").read_text() + (source / "docs/EXAMPLES.md").read_text())
        finally:
            for mount in ("w", "a", "b", *(path.name for path in test.mnt.glob("weight_v*"))):
                test.unmount(mount)
            holder.send_signal(signal.SIGTERM)
            holder.wait()
            hub.terminate()
            hub.wait()
            hub.stdout.close()
    sys.exit(1 if test.failures else 0)


main()
