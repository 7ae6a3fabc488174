"""Writes safetensors files as safetensors itself does: the same order, the same bytes."""

import json
import os
import struct
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Union

from ._errors import SafetensorError

# By size: the order of the reference writer, which begins with the last.
_ORDER = ["BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ",
          "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"]


class Entry(NamedTuple):
    name: str
    dtype: str
    shape: List[int]
    data: Any  # bytes-like, of all its elements


def parts_of(entries: Iterable[Entry], metadata: Optional[Mapping[str, str]]) -> Iterator[Any]:
    """The parts of the file, one behind the other."""
    entries = list(entries)
    for entry in entries:
        if not isinstance(entry.name, str):
            raise TypeError(f"{entry.name!r}: names of tensors are str")
    ordered = sorted(entries, key=lambda entry: (-_ORDER.index(entry.dtype), entry.name))
    header: Dict[str, Any] = {}
    if metadata is not None:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise SafetensorError(f"metadata {key!r}: keys and values must be str", 2)
        header["__metadata__"] = dict(metadata)
    offset = 0
    for entry in ordered:
        if entry.name == "__metadata__":
            raise SafetensorError("a tensor cannot be called __metadata__: that is the name of the metadata", 2)
        length = memoryview(entry.data).nbytes
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offset, offset + length]}
        offset += length
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise SafetensorError(f"{error.object[error.start:error.end]!r} in a name or in the metadata: "
                              "safetensors needs UTF-8", 2) from None
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for entry in ordered:
        yield entry.data


def write(entries: Iterable[Entry], filename: Union[str, "os.PathLike[str]"],
          metadata: Optional[Mapping[str, str]]) -> None:
    """Writes beside the file and renames: it appears whole, or not at all. A device or a pipe is written to."""
    target = os.path.realpath(os.fspath(filename))
    parts = parts_of(entries, metadata)
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as device:
            device.writelines(parts)
        return
    beside = f"{target}.{os.urandom(8).hex()}.tmp"
    try:
        file = open(beside, "xb")
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(filename)) from None
    try:
        with file:
            file.writelines(parts)
        os.replace(beside, target)
    except BaseException:
        try:
            os.unlink(beside)
        except FileNotFoundError:
            pass
        raise
