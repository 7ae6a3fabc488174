"""Writes the tensors of a safetensors file like torch.save, without PyTorch."""
import json
import struct
import zipfile

STORAGES = {"BF16": "BFloat16Storage", "F16": "HalfStorage", "F32": "FloatStorage", "U8": "ByteStorage"}


def _text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _numbers(values):
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"


def _tensor(key, dtype, shape):
    strides, count = [], 1
    for dim in reversed(shape):
        strides.insert(0, count)
        count *= dim
    storage = (b"(" + _text("storage") + f"ctorch\n{STORAGES[dtype]}\n".encode() + _text(key) + _text("cpu") +
               _numbers([count])[1:-1] + b"tQ")
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + _numbers(shape) + _numbers(strides) +
            b"\x89ccollections\nOrderedDict\n)RtR")


def write_torch(source, target):
    """Writes the tensors of the safetensors file `source` to `target`."""
    with source.open("rb") as file, zipfile.ZipFile(target, "w") as archive:
        begin = 8 + int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(begin - 8))
        header.pop("__metadata__", None)
        pickle = b"\x80\x02}("
        for key, (name, tensor) in enumerate(header.items()):
            pickle += _text(name) + _tensor(str(key), tensor["dtype"], tensor["shape"])
        archive.writestr("archive/data.pkl", pickle + b"u.")
        for key, tensor in enumerate(header.values()):
            first, last = tensor["data_offsets"]
            file.seek(begin + first)
            archive.writestr(f"archive/data/{key}", file.read(last - first))
