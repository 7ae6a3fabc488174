"""upgrade_test.py PROGRAMS VERSION.json: expects the same answers from this release as from an earlier release.

PROGRAMS is the directory of a build. VERSION.json contains command lines of the earlier release, which are run in tests/data, each with
its exit status and its answer. The answer is JSON or the SHA-256 of the bytes. All members of the
JSON must be present with the same values; new members are allowed. `--record PROGRAMS VERSION.json`, with the programs of that release, writes the file."""

import hashlib
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
VOICES, DTYPES, SHARDED = "single/voices.safetensors", "single/dtypes.safetensors", "sharded/model.safetensors.index.json"
GGUF = "gguf/llama-2-tiny-random.gguf"
# MNT is a mount of VOICES with .stfs listed, and OUT is a new file. The first word is the kind of comparison: the JSON, the bytes (of OUT
# if the command names it), or only the exit status. Only append lines, because the file of a release contains the lines that existed then.
COMMANDS = [
    ("json", "stfs-info list --json " + VOICES),
    ("json", "stfs-info list --json --sort size sharded *_3*"),
    ("status", "stfs-info list --sort offset --allow-missing " + SHARDED),
    ("json", f"stfs-info show --json {VOICES} tokens"),
    ("json", f"stfs-info show --json --allow-missing {DTYPES} float8_e4m3fn_35"),
    ("status", f"stfs-info show {VOICES} no-such-tensor"),
    ("status", f"stfs-info check {VOICES} {DTYPES} {SHARDED}"),
    ("status", "stfs-info check README.md"),
    ("status", "stfs-info list no-such-file"),
    ("status", "stfs-info list --no-such-option " + VOICES),
    ("bytes", f"stfs-info cat {VOICES} tokens"),
    ("bytes", f"stfs-info cat --slice 0:1 {VOICES} tokens"),
    ("bytes", f"stfs-info cat --as f32 --npy {DTYPES} bfloat16_35"),
    ("bytes", f"stfs-info cat --slice 0:1 --as f32 {DTYPES} bfloat16_35"),
    ("json", "stfs-info stats --json -j 2 " + VOICES),
    ("bytes", "stfs-info hash " + VOICES),
    ("json", "stfs-info hash --json -j 1 sharded"),
    ("json", f"stfs-info diff --json {VOICES} {VOICES}"),
    ("json", f"stfs-info diff --json -j 2 {VOICES} {DTYPES}"),
    ("bytes", f"stfs-info extract {VOICES} tok* -o OUT"),
    ("bytes", "stfs-info extract --allow-missing sharded float*_3* --output OUT"),
    ("json", "stfs-info where --json MNT/tokens"),
    ("status", "stfs-info where MNT/tokens MNT/.stfs/npy/tokens.npy"),
    ("json", "stfs-gpu devices --json"),
    ("json", "stfs-gpu plan --device cpu --json MNT/tokens"),
    ("json", f"stfs-gpu load --device cpu --dry-run --json {VOICES}::tokens"),
    ("json", f"stfs-gpu load --device cpu --json --verify --pin --workers 2 {VOICES}::tokens"),
    ("status", "stfs-gpu load --device cpu --as f16 --shard 0/2@0 MNT/tokens"),
    ("json", "stfs-gpu ls --json"),
    ("status", f"stfs-gpu unpin {VOICES}::tokens"),
    ("status", f"stfs-gpu pin {VOICES}::tokens"),
    ("status", f"stfs-gpu evict --force {VOICES}::tokens"),
    ("status", "stfs-gpu evict --all --force"),
    ("status", "stfs-gpu doctor"),
    ("status", "stfs -u /no/such/mountpoint"),
    # Since 0.2.0.
    ("json", f"stfs-info info --json {GGUF}"),
    ("json", f"stfs-info list --json {GGUF} blk.0.*"),
    ("bytes", f"stfs-info cat --as f32 {GGUF} blk.0.attn_q.weight"),
    ("bytes", f"stfs-info extract {GGUF} blk.0.* -o OUT"),
    ("json", f"stfs-info list --json --dequantize=bf16 {GGUF} blk.0.*"),
    ("json", f"stfs-info diff --json --values {VOICES} {DTYPES}"),
    ("json", f"stfs-info stats --json {DTYPES} float*"),
    ("status", f"stfs-info stats --nonfinite {VOICES}"),
    ("json", f"stfs-info check --json {VOICES}"),
    ("bytes", f"stfs-info edit {VOICES} -e drop\\ mask -o OUT"),
    ("status", f"stfs-info edit {VOICES} -e drop\\ nothing"),
    ("status", f"stfs-info report {VOICES} -o OUT"),
    ("json", "stfs-info list --json MNT"),
    ("json", f"stfs-gpu load --device cpu --dry-run --json --dequantize=bf16 {GGUF}::blk.0.attn_q.weight"),
]
# Each mount option of 0.1.0, and the words of fstab(5) that 0.1.0 accepted.
OPTIONS = ("views=visible,cache=direct,allow_missing,supervise,threads=3,uid=0,gid=0,umask=027,max_read=65536,fsname=weights,"
           "ro,nosuid,nodev,defaults,noauto,users,_netdev,nofail,noatime,comment=x,x-systemd.automount")
# Members that differ by machine and time.
VOLATILE = {"free_bytes", "total_bytes", "needed_bytes", "uuid", "key", "seconds", "idle_seconds", "mtime"}


def without_volatile(value):
    if isinstance(value, dict):
        return {key: without_volatile(member) for key, member in value.items() if key not in VOLATILE}
    return [without_volatile(member) for member in value] if isinstance(value, list) else value


def differences(was, now, at="$"):
    """Yields a text for each member of `was` that `now` lacks or has with another value."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key, value in was.items():
            if key not in now:
                yield f"{at}.{key} is missing"
            else:
                yield from differences(value, now[key], f"{at}.{key}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for index, (one, other) in enumerate(zip(was, now)):
            yield from differences(one, other, f"{at}[{index}]")
    elif isinstance(was, float) and isinstance(now, (int, float)):
        if abs(was - now) > 1e-9 * max(1.0, abs(was)):
            yield f"{at}: was {was}, is {now}"
    elif was != now:
        yield f"{at}: was {was}, is {now}"


class Programs:
    def __init__(self, build, work):
        self.paths = {path.name: path for path in (build / "fs/stfs", build / "tools/stfs-info", build / "tools/gpu/stfs-gpu")}
        self.mountpoint, self.out = work / "mnt", work / "out.safetensors"
        self.work, self.holder = work, None
        self.mountpoint.mkdir()
        self.environment = {**os.environ, "STFS_GPU_SOCKET": str(work / "socket"), "XDG_CACHE_HOME": str(work / "cache")}

    def run(self, words):
        names = {"MNT": str(self.mountpoint), "OUT": str(self.out)}
        words = [word.replace("MNT", names["MNT"]) if word.startswith("MNT") else names.get(word, word) for word in words]
        return subprocess.run([self.paths[words[0]], *words[1:]], cwd=DATA, env=self.environment, capture_output=True)

    def mount(self):
        mounted = self.run(["stfs", "-o", OPTIONS, VOICES, "MNT"])
        if mounted.returncode != 0:
            sys.exit(f"an fstab line of the earlier release does not mount: {mounted.stderr.decode()}")

    def start_holder(self):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.environment["STFS_GPU_SOCKET"])
        listener.listen()
        fd = listener.detach()
        self.holder = subprocess.Popen(["sh", "-c", f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" holder 3<&{fd}', self.paths["stfs-gpu"]],
                                       pass_fds=[fd], env=self.environment, stderr=subprocess.DEVNULL)

    def end(self):
        self.run(["stfs", "-u", "-z", "MNT"])
        if self.holder:
            self.holder.terminate()
            self.holder.wait()

    def answer(self, kind, command):
        self.out.unlink(missing_ok=True)
        words = shlex.split(command)
        ended = self.run(words)
        answer = {"command": command, "status": ended.returncode}
        if kind == "json":
            text = ended.stdout.decode().replace(str(DATA), "DATA").replace(str(self.mountpoint), "MNT")
            answer["json"] = without_volatile(json.loads(text))
        elif kind == "bytes":
            data = self.out.read_bytes() if "OUT" in words else ended.stdout
            answer["sha256"] = hashlib.sha256(data).hexdigest()
        return answer, ended.stderr.decode(errors="replace")


def main():
    record = sys.argv[1] == "--record"
    build, file = map(pathlib.Path, sys.argv[-2:])
    if not os.access("/dev/fuse", os.W_OK):
        print("skipped: no /dev/fuse")
        return 77
    failed = False
    with tempfile.TemporaryDirectory() as work:
        programs = Programs(build.resolve(), pathlib.Path(work))
        try:
            programs.mount()
            programs.start_holder()
            kinds = {command: kind for kind, command in COMMANDS}
            if record:
                answers = [programs.answer(kind, command)[0] for kind, command in COMMANDS]
                file.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")
                return 0
            for was in json.loads(file.read_text()):
                now, said = programs.answer(kinds[was["command"]], was["command"])
                for difference in differences(was, now):
                    failed = True
                    print(f"{was['command']}: {difference}\n  {said.strip()}")
        finally:
            programs.end()
    return failed


sys.exit(main())
