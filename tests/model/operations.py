"""The operations of the model: each does what a user may do and compares the result with the model's own answer.

An operation is a function of a Run and a random generator. It raises AssertionError, or OSError where none is expected.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import pathlib
import re
import subprocess
import tempfile

import numpy as np

import checkpoints
import paths
from elements import same_floats

INVALID_EXPRESSIONS = ["a", "1.5", "0:1:0", "::-1", "0,,0", "...,...", "0;0", "[0]", "0:1:2:3", "--1", "None", "1e1", "0x1"]


class Run:
    """A mounted checkpoint. `permitted` has the errnos that reads may return since a fault was injected."""

    def __init__(self, checkpoint, mountpoint, directory, tools, is_catalogue_listed):
        self.is_catalogue_listed = is_catalogue_listed  # -o views=visible
        self.checkpoint, self.mountpoint, self.directory, self.tools = checkpoint, os.fsencode(mountpoint), directory, tools
        self.tensors = checkpoint.tensors
        self.components = {name: paths.components(name, self.tensors) for name in self.tensors}
        self.permitted = frozenset()

    def view(self, *parts):
        return b"/".join([self.mountpoint, b".stfs", *parts])

    def file(self, name):
        return b"/".join([self.mountpoint, paths.path(self.components[name])])

    def one(self, rng):
        name = rng.choice(list(self.tensors))
        return name, self.tensors[name]

    def info(self, *words, status=(0,)):
        """Runs stfs-info and returns what it prints."""
        done = subprocess.run([self.tools["INFO"], *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert done.returncode in status, f"stfs-info {words}: {done.returncode}: {done.stderr.decode(errors='replace')[:500]}"
        return done.stdout

    def sources(self):
        return [os.fsencode(source) for source in self.checkpoint.sources]


def same(what, got, wanted):
    if got != wanted:
        shown = [repr(each)[:300] for each in (got, wanted)]
        raise AssertionError(f"{what}: got {shown[0]}, expected {shown[1]}")


def same_bytes(what, got, wanted):
    if got == wanted:
        return
    length = min(len(got), len(wanted))
    place = next((at for at in range(length) if got[at] != wanted[at]), length)
    raise AssertionError(f"{what}: {len(got)} bytes, expected {len(wanted)}; byte {place} is "
                         f"{got[place:place + 8].hex()}, expected {wanted[place:place + 8].hex()}")


def contents(path):
    with open(path, "rb", buffering=0) as file:
        data = bytearray()
        while piece := file.read(1 << 20):
            data += piece
        return bytes(data)


@contextlib.contextmanager
def fails(what, *codes):
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise AssertionError(f"{what}: {errno.errorcode[error.errno]}, expected {[errno.errorcode[code] for code in codes]}") from error
    else:
        raise AssertionError(f"{what}: no error, expected {[errno.errorcode[code] for code in codes]}")


def random_range(rng, size):
    begin = rng.choice([0, rng.randint(0, size), rng.randint(0, size), max(0, size - 1), size, size + rng.randint(0, 9000)])
    return begin, rng.choice([0, 1, 7, rng.randint(0, size + 10), rng.randint(0, 5000), 1 << 17])


def read_range(descriptor, begin, count):
    """Reads until the count is complete or the end of the file is reached."""
    data = bytearray()
    while len(data) < count:
        piece = os.pread(descriptor, count - len(data), begin + len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


# --- the files of the root ------------------------------------------------------------------------------------------


def reads_a_whole_tensor(run, rng):
    name, tensor = run.one(rng)
    same_bytes(f"{name!r}", contents(run.file(name)), tensor.data)


def reads_ranges(run, rng):
    name, tensor = run.one(rng)
    descriptor = os.open(run.file(name), os.O_RDONLY)
    try:
        for _ in range(rng.randint(1, 6)):
            begin, count = random_range(rng, len(tensor.data))
            same_bytes(f"{name!r}[{begin}:+{count}]", read_range(descriptor, begin, count), tensor.data[begin : begin + count])
    finally:
        os.close(descriptor)


def reads_around_the_page_cache(run, rng):
    name, tensor = run.one(rng)
    descriptor = os.open(run.file(name), os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 18) as room:
            for _ in range(rng.randint(1, 3)):
                begin = rng.randint(0, len(tensor.data) // 4096 + 1) * 4096
                count = rng.choice([4096, 8192, 1 << 18])
                got = os.preadv(descriptor, [memoryview(room)[:count]], begin)
                wanted = tensor.data[begin : begin + count]
                same_bytes(f"O_DIRECT {name!r}[{begin}:+{count}]", room[:got], wanted)
    finally:
        os.close(descriptor)


def maps_a_tensor(run, rng):
    name, tensor = run.one(rng)
    if not tensor.data or run.permitted:  # a mapping of a changed source raises SIGBUS
        return
    with open(run.file(name), "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
        begin = rng.randint(0, len(tensor.data))
        end = rng.randint(begin, len(tensor.data))
        same_bytes(f"mmap {name!r}[{begin}:{end}]", mapped[begin:end], tensor.data[begin:end])


def stats_a_tensor(run, rng):
    name, tensor = run.one(rng)
    found = os.stat(run.file(name))
    same(f"size of {name!r}", found.st_size, len(tensor.data))
    same(f"mode of {name!r}", oct(found.st_mode), oct(0o100444))
    same(f"blocks of {name!r}", found.st_blocks, -(-len(tensor.data) // 512))
    inodes = {os.stat(run.file(each)).st_ino for each in run.tensors}
    same("number of inodes", len(inodes), len(run.tensors))


def lists_a_directory(run, rng):
    chosen = run.components[run.one(rng)[0]]
    parent = chosen[: rng.randint(0, len(chosen) - 1)]
    wanted = {}
    for parts in run.components.values():
        if len(parts) > len(parent) and parts[: len(parent)] == parent:
            wanted[parts[len(parent)]] = len(parts) > len(parent) + 1
    with os.scandir(b"/".join([run.mountpoint, *parent])) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    # The order is that of the paths, so a directory is sorted as if its name ended in a slash.
    expected = sorted(wanted.items(), key=lambda entry: entry[0] + (b"/" if entry[1] else b""))
    if not parent and run.is_catalogue_listed:
        expected.append((b".stfs", True))
    same(f"listing of {parent!r}", found, expected)


def reads_attributes(run, rng):
    name, tensor = run.one(rng)
    path = run.file(name)
    same(f"name of {name!r}", os.getxattr(path, "user.stfs.name"), name)
    same(f"dtype of {name!r}", os.getxattr(path, "user.stfs.dtype").decode(), tensor.dtype)
    same(f"shape of {name!r}", json.loads(os.getxattr(path, "user.stfs.shape")), list(tensor.shape))
    if name in run.checkpoint.stored:
        source, offset = run.checkpoint.stored[name]
        same(f"source of {name!r}", os.getxattr(path, "user.stfs.source"), os.fsencode(os.path.realpath(source)))
        same(f"length of {name!r}", int(os.getxattr(path, "user.stfs.length")), len(tensor.data))
        if tensor.data:
            same(f"offset of {name!r}", int(os.getxattr(path, "user.stfs.offset")), offset)
    with fails("an attribute that no file has", errno.ENODATA):
        os.getxattr(path, "user.stfs.nothing")


def finds_no_other_name(run, rng):
    name, _ = run.one(rng)
    for path in (run.file(name) + b"x", run.view(b"nothing"), run.view(b"npy", paths.path(run.components[name]))):
        with fails(f"{path!r}", errno.ENOENT, errno.ENAMETOOLONG, errno.EISDIR):
            if not os.path.isdir(path):
                contents(path)
            else:
                raise OSError(errno.EISDIR, "a directory")


def refuses_to_write(run, rng):
    path = run.file(run.one(rng)[0])
    refused = (errno.EROFS, errno.EACCES, errno.EPERM)
    with fails("open for writing", *refused):
        os.open(path, os.O_WRONLY)
    with fails("unlink", *refused):
        os.unlink(path)
    with fails("create", *refused):
        os.open(run.mountpoint + b"/new", os.O_CREAT | os.O_WRONLY)
    with fails("truncate", *refused):
        os.truncate(path, 0)


# --- the views ------------------------------------------------------------------------------------------------------


def check_npy(what, raw, npy_type, shape, data, is_float):
    """Checks a .npy file: version 1.0, C order, and an array that begins at a multiple of 64 bytes."""
    same(f"{what}: magic", raw[:8], b"\x93NUMPY\x01\x00")
    length = int.from_bytes(raw[8:10], "little")
    header = eval(raw[10 : 10 + length], {"__builtins__": {}})  # noqa: S307: a dict of constants
    same(f"{what}: header", header, {"descr": npy_type, "fortran_order": False, "shape": tuple(shape)})
    same(f"{what}: alignment", (10 + length) % 64, 0)
    check_values(what, raw[10 + length :], data, is_float)


def check_values(what, got, wanted, is_float):
    if not (is_float and same_floats(got, wanted)):
        same_bytes(what, got, wanted)


def read_view(path, rng):
    """Returns a view's bytes: read from its beginning, or in pieces that begin anywhere. Checks its size."""
    size = os.stat(path).st_size
    if rng.random() < 0.5:
        data = contents(path)
    else:
        cuts = sorted({0, size, *(rng.randint(0, size) for _ in range(3))})
        pieces = list(zip(cuts, cuts[1:]))
        rng.shuffle(pieces)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            read = {begin: read_range(descriptor, begin, end - begin) for begin, end in pieces}
        finally:
            os.close(descriptor)
        data = b"".join(read[begin] for begin in sorted(read))
    same(f"size of {path!r}", len(data), size)
    return data


def float_bytes(tensor):
    return tensor.values().astype("<f4").tobytes()


def reads_npy(run, rng):
    name, tensor = run.one(rng)
    path = run.view(b"npy", paths.path(run.components[name], b".npy"))
    if not tensor.npy_type:
        with fails(f"npy of {tensor.dtype}", errno.ENOENT):
            os.stat(path)
        return
    check_npy(f"npy of {name!r}", read_view(path, rng), tensor.npy_type, tensor.shape, tensor.data, False)


def reads_floats(run, rng):
    name, tensor = run.one(rng)
    is_npy = rng.random() < 0.5
    suffix, view = (b".npy", b"npy-f32") if is_npy else (b"", b"f32")
    path = run.view(view, paths.path(run.components[name], suffix))
    if tensor.values() is None:
        with fails(f"f32 of {tensor.dtype}", errno.ENOENT):
            os.stat(path)
    elif is_npy:
        check_npy(f"npy-f32 of {name!r}", read_view(path, rng), "<f4", tensor.shape, float_bytes(tensor), True)
    else:
        check_values(f"f32 of {name!r}", read_view(path, rng), float_bytes(tensor), True)


def random_expression(rng, shape):
    """Returns an expression of NumPy's indexing; it may be out of range."""

    def number(edge):
        return rng.choice([0, 1, edge // 2, max(0, edge - 1), edge, -1, -edge, rng.randint(-edge - 2, edge + 2)])

    items = []
    for edge in shape[: rng.randint(0, len(shape))] if shape else []:
        if rng.random() < 0.3:
            items.append(str(number(edge)))
            continue
        text = rng.choice(["", str(number(edge))]) + ":" + rng.choice(["", str(number(edge))])
        items.append(text + rng.choice(["", "", ":", f":{rng.choice([1, 2, 3, 7])}"]))
    if rng.random() < 0.3 or not items:
        items.insert(rng.choice([0, len(items)]), "...")
    return ",".join(items)


def selected(tensor, expression):
    """Returns the codes that NumPy selects, or the errno: ERANGE for an index out of range, EINVAL for half a byte."""
    codes = tensor.codes()
    try:
        places = eval(f"places[{expression}]", {"places": np.arange(codes.size).reshape(codes.shape)})  # noqa: S307
    except IndexError as error:
        return errno.EINVAL if "too many" in str(error) else errno.ERANGE
    places = np.asarray(places)
    return places


def takes_whole_bytes(tensor, places):
    """Whether each run of neighbouring elements begins and ends at a byte."""
    flat = places.reshape(-1)
    if flat.size == 0:
        return True
    breaks = np.flatnonzero(np.diff(flat) != 1)
    begins = flat[np.concatenate([[0], breaks + 1])]
    ends = flat[np.concatenate([breaks, [flat.size - 1]])] + 1
    return not ((begins * tensor.bits) % 8).any() and not ((ends * tensor.bits) % 8).any()


def slice_of(tensor, expression, as_floats):
    """Returns (shape, bytes) of a part, or an errno."""
    places = selected(tensor, expression)
    if isinstance(places, int):
        return places
    if as_floats:
        return places.shape, tensor.values().reshape(-1)[places].astype("<f4").tobytes()
    if not takes_whole_bytes(tensor, places):
        return errno.EINVAL
    return places.shape, tensor.with_codes(tensor.codes().reshape(-1)[places]).data


def reads_a_slice(run, rng):
    name, tensor = run.one(rng)
    as_floats, is_npy = rng.random() < 0.4, rng.random() < 0.4
    view = ("npy-" if is_npy else "") + ("f32-" if as_floats else "") + "slice"
    is_valid = rng.random() < 0.85
    expression = random_expression(rng, tensor.shape) if is_valid else rng.choice(INVALID_EXPRESSIONS)
    suffix = b".npy" if is_npy else b""
    path = run.view(view.encode(), paths.path(run.components[name]), expression.encode() + suffix)
    what = f"{view} of {name!r} {tensor.dtype}{list(tensor.shape)} [{expression}]"
    if (as_floats and tensor.values() is None) or (is_npy and not as_floats and not tensor.npy_type):
        with fails(what, errno.ENOENT):
            os.stat(path)
        return
    wanted = slice_of(tensor, expression, as_floats) if is_valid else errno.EINVAL
    if isinstance(wanted, int):
        with fails(what, wanted):
            os.stat(path)
        return
    if is_npy:
        check_npy(what, read_view(path, rng), "<f4" if as_floats else tensor.npy_type, *wanted, as_floats)
    else:
        check_values(what, read_view(path, rng), wanted[1], as_floats)


def can_be_safetensors(run, name):
    if run.checkpoint.format != "gguf":
        return True
    try:
        return name.decode() != "__metadata__"
    except UnicodeDecodeError:
        return False


def check_safetensors(what, path, wanted):
    tensors, _ = checkpoints.read_safetensors(os.fsdecode(path))
    same(f"{what}: names", sorted(tensors), sorted(wanted))
    for name, tensor in wanted.items():
        got = tensors[name]
        same(f"{what}: {name!r}", (got.dtype, got.shape), (tensor.dtype, tensor.shape))
        same_bytes(f"{what}: {name!r}", got.data, tensor.data)


def reads_one_tensor_as_safetensors(run, rng):
    name, tensor = run.one(rng)
    path = run.view(b"safetensors", paths.path(run.components[name], b".safetensors"))
    if not can_be_safetensors(run, name):
        with fails(f"safetensors of {name!r}", errno.ENOENT):
            os.stat(path)
        return
    check_safetensors(f"safetensors/ of {name!r}", path, {name: tensor})


def matches(glob, name):
    """Matches a glob whose only special character is the star."""
    first, *others = glob.split(b"*")
    if not others:
        return name == glob
    if not name.startswith(first):
        return False
    place = len(first)
    for part in others[:-1]:
        place = name.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return len(name) - place >= len(others[-1]) and name.endswith(others[-1])


def random_glob(run, rng):
    """Returns a glob whose only special character is the star, and the names that it matches."""
    name = run.one(rng)[0]
    plain = re.sub(rb"[^A-Za-z0-9._/]", b"*", name)
    glob = rng.choice([b"*", plain, plain[: rng.randint(0, len(plain))] + b"*", b"*" + plain[rng.randint(0, len(plain)) :]])[-120:]
    return glob, [each for each in run.tensors if matches(glob, each)]


def reads_a_subset(run, rng):
    is_merged = rng.random() < 0.3
    glob, names = (b"*", list(run.tensors)) if is_merged else random_glob(run, rng)
    path = run.view(b"merged.safetensors") if is_merged else run.view(b"subset", glob.replace(b"%", b"%25").replace(b"/", b"%2F") + b".safetensors")
    if not names:
        with fails(f"subset {glob!r}", errno.ENOENT):
            os.stat(path)
    elif not all(can_be_safetensors(run, name) for name in names):
        with fails(f"subset {glob!r}", errno.EOPNOTSUPP):
            contents(path)
    else:
        check_safetensors(f"subset {glob!r}", path, {name: run.tensors[name] for name in names})


def reads_a_digest(run, rng):
    name, tensor = run.one(rng)
    text = contents(run.view(b"sha256", paths.path(run.components[name])))
    same(f"sha256 of {name!r}", text.lstrip(b"\\").split()[0].decode(), hashlib.sha256(tensor.data).hexdigest())


def check_statistics(what, found, tensor):
    values = tensor.doubles()
    same(f"{what}: count", found["count"], int(np.prod(tensor.shape, dtype=np.int64)))
    if values is None:
        return
    finite = values[np.isfinite(values)]
    same(f"{what}: nan, inf, zeros", (found["nan"], found["inf"], found["zeros"]),
         (int(np.isnan(values).sum()), int(np.isinf(values).sum()), int((values == 0).sum())))
    same(f"{what}: nan_at", found["nan_at"], [[int(i) for i in at] for at in np.argwhere(np.isnan(values))[:8]])
    same(f"{what}: inf_at", found["inf_at"], [[int(i) for i in at] for at in np.argwhere(np.isinf(values))[:8]])
    if finite.size == 0:
        same(f"{what}: min of no finite value", found["min"], None)
        return
    same(f"{what}: min, max", (found["min"], found["max"]), (finite.min(), finite.max()))
    largest = np.abs(finite).max()
    magnitudes = np.where(np.isfinite(values), np.abs(values), -1)
    same(f"{what}: largest_at", found["largest_at"], [int(i) for i in np.argwhere(magnitudes == largest)[0]])
    scale = max(largest, 1e-300)
    for key, wanted in (("mean", np.mean(finite / scale)), ("std", np.std(finite / scale))):
        assert abs(found[key] / scale - wanted) < 1e-9, f"{what}: {key} is {found[key]}, expected {wanted * scale}"


def reads_statistics(run, rng):
    name, tensor = run.one(rng)
    check_statistics(f"stats of {name!r}", json.loads(contents(run.view(b"stats", paths.path(run.components[name], b".json")))), tensor)


def reads_the_catalogue(run, rng):
    name, tensor = run.one(rng)
    row = json.loads(contents(run.view(b"json", paths.path(run.components[name], b".json"))))
    same(f"json of {name!r}", (row["dtype"], row["shape"], row["bytes"]), (tensor.dtype, list(tensor.shape), len(tensor.data)))
    same(f"name of {name!r}", row["name"], name.decode(errors="replace") if "�" not in row["name"] else row["name"])
    rows = json.loads(contents(run.view(b"tensors.json")))
    same("names in tensors.json", len(rows), len(run.tensors))
    same("bytes in tensors.json", sum(each["bytes"] for each in rows), sum(len(each.data) for each in run.tensors.values()))
    information = json.loads(contents(run.view(b"info.json")))
    same("info.json", (information["tensors"], information["parameters"]),
         (len(run.tensors), sum(int(np.prod(each.shape, dtype=np.int64)) for each in run.tensors.values())))


def reads_metadata(run, rng):
    for key, value in run.checkpoint.metadata.items():
        name = paths.shortened(paths.encoded_component(key.encode(), False))
        same_bytes(f"metadata/{key}", contents(run.view(b"metadata", name)), value.encode())


# --- stfs-info ------------------------------------------------------------------------------------------------------


def needs_one_source(operation):
    def checked(run, rng):
        if len(run.checkpoint.sources) == 1:
            operation(run, rng)

    checked.__name__ = operation.__name__
    return checked


def can_be_an_argument(name):
    """A glob that means this name alone: special characters are escaped."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", name)


@needs_one_source
def prints_bytes(run, rng):
    name, tensor = run.one(rng)
    words, as_floats, is_npy, expression = [], rng.random() < 0.4, rng.random() < 0.4, None
    if rng.random() < 0.6:
        expression = random_expression(rng, tensor.shape)
        words += ["--slice", expression]
    words += ["--as", "f32"] if as_floats else []
    words += ["--npy"] if is_npy else []
    what = f"stfs-info cat {words} {name!r} {tensor.dtype}{list(tensor.shape)}"
    if (as_floats and tensor.values() is None) or (is_npy and not as_floats and not tensor.npy_type):
        run.info("cat", *words, "--", *run.sources(), can_be_an_argument(name), status=(1, 2))
        return
    wanted = slice_of(tensor, expression or "...", as_floats)
    if isinstance(wanted, int):
        run.info("cat", *words, "--", *run.sources(), can_be_an_argument(name), status=(2,))
        return
    got = run.info("cat", *words, "--", *run.sources(), can_be_an_argument(name))
    if is_npy:
        check_npy(what, got, "<f4" if as_floats else tensor.npy_type, *wanted, as_floats)
    else:
        check_values(what, got, wanted[1], as_floats)


@needs_one_source
def prints_the_list(run, rng):
    rows = json.loads(run.info("list", "--json", *run.sources()))
    same("rows of stfs-info list", sorted((row["dtype"], tuple(row["shape"]), row["bytes"]) for row in rows),
         sorted((each.dtype, each.shape, len(each.data)) for each in run.tensors.values()))


@needs_one_source
def prints_digests(run, rng):
    lines = run.info("hash", *run.sources()).splitlines()
    same("digests", sorted(line.lstrip(b"\\").split()[0].decode() for line in lines),
         sorted(hashlib.sha256(each.data).hexdigest() for each in run.tensors.values()))


@needs_one_source
def prints_statistics(run, rng):
    rows = json.loads(run.info("stats", "--json", *run.sources()))
    by_name = {row["name"]: row for row in rows}
    for name, tensor in run.tensors.items():
        row = by_name.get(name.decode(errors="surrogateescape"))
        if row is not None:
            check_statistics(f"stfs-info stats of {name!r}", row.get("stats", row), tensor)


@contextlib.contextmanager
def new_directory(run):
    with tempfile.TemporaryDirectory(dir=run.directory) as directory:
        yield pathlib.Path(directory)


@needs_one_source
def writes_an_extract(run, rng):
    glob, names = random_glob(run, rng)
    names = [glob] if glob in run.tensors else names  # commands prefer the tensor of exactly this name
    with new_directory(run) as directory:
        if rng.random() < 0.3:
            words = ["--shard-size", f"{rng.choice([1, 4, 64])}KB", "-o", directory / "out"]
        else:
            words = ["-o", directory / "out.safetensors"]
        if not names or not all(can_be_safetensors(run, name) for name in names):
            run.info("extract", *words, "--", *run.sources(), glob, status=(1, 2, 3))
            same("files left behind", list(directory.iterdir()), [])
            return
        run.info("extract", *words, "--", *run.sources(), glob)
        files = [directory / "out.safetensors"] if (directory / "out.safetensors").exists() else sorted((directory / "out").glob("*.safetensors"))
        found = {}
        for file in files:
            found.update(checkpoints.read_safetensors(file)[0])
        same(f"names of extract {glob!r}", sorted(found), sorted(names))
        for name in names:
            same(f"extract {name!r}", (found[name].dtype, found[name].shape), (run.tensors[name].dtype, run.tensors[name].shape))
            same_bytes(f"extract {name!r}", found[name].data, run.tensors[name].data)


PLAIN = re.compile(rb"[A-Za-z0-9._]+\Z")


@needs_one_source
def writes_an_edit(run, rng):
    """Drops some tensors and renames others; the rest must keep its bytes."""
    if not all(can_be_safetensors(run, name) for name in run.tensors):
        return
    plain = [name for name in run.tensors if PLAIN.match(name)]
    if len(plain) < 2:
        return
    dropped, renamed = rng.sample(plain, 2)
    wanted = {name: tensor for name, tensor in run.tensors.items() if name != dropped}
    wanted[b"renamed-by-the-model"] = wanted.pop(renamed)
    if b"renamed-by-the-model" in run.tensors:
        return
    pattern = re.escape(renamed).decode()
    with new_directory(run) as directory:
        out = directory / "out.safetensors"
        run.info("edit", "-e", f"drop {dropped.decode()}", "-e", f"rename s/^{pattern}$/renamed-by-the-model/", "-o", out, *run.sources())
        check_safetensors("edit", out, wanted)


@needs_one_source
def compares_a_copy(run, rng):
    """A copy is equal; a copy with one changed byte is not, and only that tensor differs."""
    if not all(can_be_safetensors(run, name) for name in run.tensors):
        return
    with new_directory(run) as directory:
        copy = dict(run.tensors)
        with_bytes = [name for name, each in copy.items() if each.data and each.dtype != "BOOL"]
        changed = rng.choice(with_bytes) if with_bytes and rng.random() < 0.7 else None
        if changed is not None:
            data = bytearray(copy[changed].data)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            copy[changed] = type(copy[changed])(copy[changed].dtype, copy[changed].shape, bytes(data))
        checkpoints.safetensors(directory / "copy.safetensors", copy)
        run.info("diff", *run.sources(), directory / "copy.safetensors", status=(0,) if changed is None else (1,))


# --- the library ----------------------------------------------------------------------------------------------------


def decoded(name):
    return name.decode(errors="surrogateescape")


def reads_by_the_library(run, rng):
    stfs = run.tools["stfs"]
    name, tensor = run.one(rng)
    with stfs.open(*map(os.fsdecode, run.sources())) as opened:
        same("number of tensors in the library", len(opened), len(run.tensors))
        found = opened[decoded(name)]
        same(f"library: {name!r}", (str(found.dtype), tuple(found.shape), found.nbytes), (tensor.dtype, tensor.shape, len(tensor.data)))
        same_bytes(f"library: bytes of {name!r}", bytes(found), tensor.data)


def slices_by_the_library(run, rng):
    stfs = run.tools["stfs"]
    name, tensor = run.one(rng)
    as_floats = tensor.values() is not None and (rng.random() < 0.5 or tensor.npy_type in ("", "|V1", "<V2"))
    if not as_floats and tensor.npy_type in ("", "|V1", "<V2"):
        return
    expression = random_expression(rng, tensor.shape)
    wanted = slice_of(tensor, expression, as_floats)
    with stfs.open(*map(os.fsdecode, run.sources())) as opened:
        found = opened[decoded(name)]
        what = f"library: {name!r} {tensor.dtype}{list(tensor.shape)} [{expression}]"
        if isinstance(wanted, int):
            try:
                eval(f"found[{expression}].numpy()", {"found": found})  # noqa: S307
            except (IndexError, ValueError):
                return
            raise AssertionError(f"{what}: no error")
        part = eval(f"found[{expression}]", {"found": found})  # noqa: S307
        got = part.numpy(as_="f32") if as_floats else part.numpy()
        same(f"{what}: shape", got.shape, wanted[0])
        check_values(what, np.ascontiguousarray(got).tobytes(), wanted[1], as_floats)


# Each operation with its weight: how often it is chosen. Operations that start a process or read everything are rarer.
READS = [
    (6, reads_a_whole_tensor), (8, reads_ranges), (4, reads_around_the_page_cache), (3, maps_a_tensor), (2, stats_a_tensor),
    (3, lists_a_directory), (3, reads_attributes), (2, finds_no_other_name), (1, refuses_to_write), (5, reads_npy), (6, reads_floats),
    (14, reads_a_slice), (3, reads_one_tensor_as_safetensors), (3, reads_a_subset), (2, reads_a_digest), (4, reads_statistics),
    (2, reads_the_catalogue), (1, reads_metadata),
]
COMMANDS = [(3, prints_bytes), (1, prints_the_list), (1, prints_digests), (1, prints_statistics), (2, writes_an_extract),
            (2, writes_an_edit), (2, compares_a_copy)]
LIBRARY = [(2, reads_by_the_library), (3, slices_by_the_library)]
OPERATIONS = {operation.__name__: (weight, operation) for weight, operation in READS + COMMANDS + LIBRARY}
