"""wheel.py TREE BINARIES SOURCE VERSION OUT: makes stfs-VERSION-py3-none-manylinux_2_31_x86_64.whl.

TREE is an installed stfs; BINARIES has bin/ and lib/ of tools/wheel, which share one library.

The same tree gives the same bytes. Every file has the time of $SOURCE_DATE_EPOCH.
"""

import ast
import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import zipfile

TAG = "py3-none-manylinux_2_31_x86_64"
OLDEST_PYTHON = (3, 8)
COMMANDS = ("stfs", "stfs-gpu", "stfs-info")


def metadata(readme: str, version: str) -> str:
    """README without its first heading and without links to files that a wheel does not hold."""
    first = next(line for line in readme.splitlines()[1:] if line)
    summary = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first).replace("`", "")
    text = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", readme)
    text = re.sub(r"<picture>.*</picture>\n*", "", text)
    return "\n".join([
        "Metadata-Version: 2.1", "Name: stfs", f"Version: {version}", f"Summary: {summary}",
        "License: Apache-2.0", "Requires-Python: >=%d.%d" % OLDEST_PYTHON,
        "Classifier: License :: OSI Approved :: Apache Software License",
        "Classifier: Operating System :: POSIX :: Linux", "Classifier: Programming Language :: Python :: 3",
        "Classifier: Typing :: Typed", "Description-Content-Type: text/markdown", "", text])


def modules_of(tree: pathlib.Path) -> pathlib.Path:
    found = sorted(tree.glob("lib/python3*/*-packages"))
    if len(found) != 1:
        sys.exit(f"wheel.py: {tree}: {len(found)} directories of Python modules: there must be one")
    return found[0]


def contents(tree: pathlib.Path, binaries: pathlib.Path, source: pathlib.Path,
             version: str) -> "dict[str, tuple[bytes, int]]":
    """Path in the wheel -> (bytes, mode)."""
    files = {}
    modules, data, info = modules_of(tree), f"stfs-{version}.data", f"stfs-{version}.dist-info"
    for path in sorted(modules.rglob("*")):
        if path.suffix in (".py", ".typed"):
            files[str(path.relative_to(modules))] = (path.read_bytes(), 0o644)
        if path.suffix == ".py":
            ast.parse(path.read_bytes(), str(path), feature_version=OLDEST_PYTHON)
    library = "libexec/stfs/libstfs.so.0"  # where the programs look; pip --target drops the files in lib/
    files[f"{data}/data/{library}"] = ((binaries / "lib/libstfs.so.0").read_bytes(), 0o755)
    for name in COMMANDS:
        files[f"{data}/scripts/{name}"] = ((binaries / "bin" / name).read_bytes(), 0o755)
        files[f"{data}/data/share/man/man1/{name}.1"] = ((tree / f"share/man/man1/{name}.1").read_bytes(), 0o644)
    for path in [source / "LICENSE", source / "NOTICE", *sorted((tree / "share/doc/stfs/licences").glob("*"))]:
        files[f"{info}/licenses/{path.name}"] = (path.read_bytes(), 0o644)
    files[f"{info}/METADATA"] = (metadata((source / "README.md").read_text(), version).encode(), 0o644)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: stfs {version}\nRoot-Is-Purelib: false\n"
                              f"Tag: {TAG}\n".encode(), 0o644)
    return files


def record(files: "dict[str, tuple[bytes, int]]", name: str) -> bytes:
    lines = []
    for path, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    return "".join([*lines, f"{name},,\n"]).encode()


def main() -> None:
    tree, binaries, source = map(pathlib.Path, sys.argv[1:4])
    version, out = sys.argv[4], pathlib.Path(sys.argv[5])
    files = contents(tree, binaries, source, version)
    name = f"stfs-{version}.dist-info/RECORD"
    files[name] = (record(files, name), 0o644)
    earliest = 315532800  # a zip cannot store a time before 1980
    when = time.gmtime(max(earliest, int(os.environ.get("SOURCE_DATE_EPOCH", earliest))))[:6]
    # The information comes last, as the format recommends.
    order = sorted(files, key=lambda path: (".dist-info/" in path, path))
    with zipfile.ZipFile(out / f"stfs-{version}-{TAG}.whl", "w") as wheel:
        for path in order:
            entry = zipfile.ZipInfo(path, when)
            entry.create_system = 3  # Unix: with file modes
            entry.external_attr = (0o100000 | files[path][1]) << 16
            wheel.writestr(entry, files[path][0], zipfile.ZIP_DEFLATED, 9)


main()
