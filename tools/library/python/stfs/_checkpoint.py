"""A checkpoint: a mapping from names to tensors."""

import ctypes
import os
import warnings
from pickle import PickleBuffer
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

from . import _library
from ._errors import NoSuchTensor, UsageError
from ._library import check, interruptibly, library, slot, text_of
from ._tensor import Tensor

Source = Union[str, "os.PathLike[str]"]


def open(source: Union[Source, Sequence[Source]], *more: Source, **options: Any) -> "Checkpoint":
    """Opens one or several sources as one checkpoint.

    A source is what the commands take: a safetensors or GGUF file, an index, a directory that holds a
    checkpoint, a mount of stfs, or a URL (https://, s3://, hf://org/model@revision).

    Options are those of `stfs -o`: delta="step_20" or a list, dequantize="bf16", lora="0.5@adapter" or a list,
    edit="file.edits", edits=["drop *.bias"] (lines in place of a file), allow_missing=True, delta_memory="1G" (for what
    deltas change), cache_dir=..., cache_size="100G", connections=8, timeout=60, offline=True, insecure_http=True, s3_addressing="path",
    s3_unsigned=True, s3_requester_pays=True; and version=m.version, which fails unless the sources are
    still what they were.

    >>> stfs.open(path).metadata["format"]
    'pt'
    """
    first = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    return Checkpoint([os.fspath(each) for each in (*first, *more)], _words(options))


def _words(options: Mapping[str, Any]) -> List[str]:
    words = []
    for key, value in options.items():
        if value is None or value is False:
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words.append(key if each is True else f"{key}={os.fspath(each) if isinstance(each, os.PathLike) else each}")
    return words


def _array(texts: Sequence[Source]) -> Any:
    words = [os.fsencode(text) for text in texts]
    if any(b"\0" in word for word in words):
        raise UsageError("a source or an option contains a NUL", 2)
    return (ctypes.c_char_p * len(words))(*words)


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of one or several sources, by name, in the order of their bytes.

    Each is one version of its file: if a file changes, reading raises stfs.Unreadable with errno ESTALE, and
    never gives other bytes. Many threads may use a Checkpoint. After a fork the child may go on using it; for
    other processes it pickles as its sources, their versions and its options, if none of them has a secret: the
    query of a URL (a signed one), or a user and a password.
    """

    def __init__(self, sources: Sequence[str], options: Sequence[str]):
        """Use stfs.open(); `options` are those of the library, "key=value"."""
        self._handle: Optional[int] = None
        words, keys = _array(sources), _array(options)
        owner, place = slot(b"stfs_checkpoint")

        def opened(_: Any = owner) -> None:  # owns the result even if the call is abandoned
            check(library.stfs_open(words, len(words), keys, len(keys), None, place))

        if any(b"://" in word for word in (*words, *keys)):
            interruptibly(opened)
        else:
            opened()
        self._owner = owner  # views keep a reference to it as well
        self._handle = place[0]
        self._is_remote = bool(library.stfs_is_remote(self._handle))
        self._numbers: Optional[Dict[str, int]] = None
        self._table = _library.Table(ctypes.sizeof(_library.Table))
        check(library.stfs_tensors(self._handle, ctypes.byref(self._table)))
        self._stride: int = self._table.stride
        self._rows = (ctypes.c_char * (self._table.count * self._stride)).from_address(self._table.first or 0)
        self._files: Dict[int, memoryview] = {}  # the mapped files, by address
        self._warned: Set[str] = set()
        self._warn(4)

    def _run(self, call: Callable[[], Any]) -> Any:
        """Makes a call that may wait for the network."""
        return interruptibly(call, self._handle) if self._is_remote else call()

    def _call(self, function: Any, *arguments: Any, keeps: Any = None) -> None:
        """Calls a function of the library. `keeps` is the memory that it writes to; a memoryview is released when the
        call has ended."""
        def call() -> None:
            try:
                check(function(self._handle, *arguments))
            finally:
                if isinstance(keeps, memoryview):
                    keeps.release()

        if self._is_remote or keeps is not None:
            self._run(call)
        else:
            status = function(self._handle, *arguments)
            if status:
                check(status)

    def _warn(self, stacklevel: int) -> None:
        for line in self._texts(library.stfs_warning):
            if line not in self._warned:
                warnings.warn(line, stacklevel=stacklevel)
            self._warned.add(line)

    def _texts(self, function: Any) -> List[str]:
        texts: List[str] = []
        while (text := function(self._handle, len(texts))) is not None:
            texts.append(text.decode(errors="surrogateescape"))
        return texts

    def _text(self, which: int, number: int = 0) -> str:
        def read() -> str:
            return _library.text(self._handle, which, number)

        return str(self._run(read)) if which == _library.TEXT_METADATA else read()

    @property
    def sources(self) -> List[str]:
        """The sources as they can be opened again for the same version. A mount is named by its path."""
        return self._texts(library.stfs_source)

    @property
    def version(self) -> str:
        """64 hexadecimal digits: equal for equal versions of the same sources with the same options."""
        return str(library.stfs_checkpoint_version(self._handle), "ascii")

    @property
    def metadata(self) -> Dict[str, str]:
        """The metadata: strings as they are, numbers in decimal, arrays as JSON."""
        texts: Dict[str, str] = {}
        while True:
            try:
                key = self._text(_library.TEXT_KEY, len(texts))
            except UsageError:  # there are no more
                return texts
            texts[key] = self._text(_library.TEXT_METADATA, len(texts))

    def info(self) -> Dict[str, Any]:
        """Sources, counts, bytes and parameters by dtype, metadata, what is missing: .stfs/info.json."""
        import json

        info: Dict[str, Any] = json.loads(self._text(_library.TEXT_INFO))
        return info

    # --- the mapping

    def _by_name(self) -> Dict[str, int]:
        if self._numbers is None:
            names = ctypes.string_at(self._table.names, self._table.names_bytes) if self._table.count else b""
            found = names.decode(errors="surrogateescape").split("\0")[:-1]
            if len(found) != self._table.count:  # some names contain NULs
                found = [self._name(number) for number in range(self._table.count)]
            self._numbers = {name: number for number, name in enumerate(found)}
        return self._numbers

    def _name(self, number: int) -> str:
        row = _library.Row._make(_library.ROW.unpack_from(self._rows, number * self._stride))
        return text_of(row.name, row.name_bytes)

    def __getitem__(self, name: str) -> Tensor:
        try:
            number = (self._numbers or self._by_name())[name]
        except (KeyError, TypeError):
            return self._no_such_tensor(name)
        return Tensor(self, number, name, _library.ROW.unpack_from(self._rows, number * self._stride))

    def _file(self, address: int, length: int) -> memoryview:
        """Maps a whole file, read-only, for all arrays of it."""
        array = _library.buffer(address, length, self._owner)
        # The PickleBuffer makes a read-only memoryview the base of all other views, because NumPy asks the base whether
        # an array may become writable. With toreadonly() only, the base would be the array of ctypes, which is
        # writable.
        memory = self._files[address] = memoryview(PickleBuffer(memoryview(array).toreadonly())).cast("B")
        return memory

    def _no_such_tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str):
            raise NoSuchTensor(f"{name!r}: names of tensors are str", 2)
        try:
            given = name.encode(errors="surrogateescape")
            check(library.stfs_find(self._handle, given, len(given), ctypes.byref(ctypes.c_size_t())))
        except UnicodeEncodeError:
            pass  # the name has a surrogate that no byte decodes to
        except UsageError as error:
            raise NoSuchTensor(str(error), 2) from None
        raise NoSuchTensor(f"{name!r}: not in the checkpoint", 2)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name()

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name())

    def __len__(self) -> int:
        return int(self._table.count)

    def __repr__(self) -> str:
        return f"<stfs.Checkpoint {', '.join(self.sources)}: {len(self)} tensor{'' if len(self) == 1 else 's'}>"

    # --- the rest

    def match(self, glob: str) -> List[str]:
        """The names that match a glob, of which `*` matches "/" and "." too.

        >>> stfs.open(path).match("*eight")
        ['weight']
        """
        try:
            given = glob.encode(errors="surrogateescape")
        except UnicodeEncodeError:
            return []  # the glob has a surrogate that no byte decodes to
        numbers, count = (ctypes.c_size_t * len(self))(), ctypes.c_size_t()
        check(library.stfs_match(self._handle, given, len(given), numbers, len(self), ctypes.byref(count)))
        return [self._name(number) for number in numbers[:count.value]]

    def prefetch(self, names: Optional[Iterable[str]] = None) -> None:
        """Begins to fetch tensors of remote sources, all by default, and returns at once."""
        if isinstance(names, str):
            raise UsageError(f"{names!r}: expected a list of names", 2)
        numbers = range(len(self)) if names is None else [self[name]._number for name in names]
        check(library.stfs_prefetch(self._handle, (ctypes.c_size_t * len(numbers))(*numbers), len(numbers)))

    def save(self, path: Source, *, shard_size: int = 0, replace: bool = False) -> int:
        """Writes all tensors as they are shown, whole or not at all: a .safetensors or .gguf file, else a new
        directory for loaders, with shards of at most `shard_size` bytes. Returns the bytes that are shared with
        the sources, where the file system can share blocks (XFS, btrfs).

        >>> m = stfs.open(path, edits=["rename s/weight/w/"])
        >>> m.save(directory + "/renamed.safetensors") >= 0
        True
        """
        if shard_size < 0:
            raise UsageError(f"shard_size {shard_size}: expected a number of bytes", 2)
        options = _library.SaveOptions(ctypes.sizeof(_library.SaveOptions), shard_size, replace)
        shared = ctypes.c_uint64()
        (given,) = _array([path])
        interruptibly(lambda: check(library.stfs_save(self._handle, given, ctypes.byref(options), ctypes.byref(shared))),
                      self._handle)
        self._warn(3)
        return int(shared.value)

    def save_delta(self, path: Source, before: "Checkpoint", **options: Any) -> int:
        """Writes what changed from `before` to this checkpoint, as trainers publish it, to a new directory, whole or
        not at all. stfs.open(..., delta=path) shows it. Returns the number of tensors that changed.

        Options are encoding="xor" or "overwrite", checksum="xxh3-128" or "adler32", shard_size="5G", version=12 in
        place of the number at the end of the directory's name, and base=11 in place of the number before it.

        >>> new = stfs.open(path, edits=["cast weight F64", "cast weight BF16"])
        >>> new.save_delta(directory + "/weight_v000001", stfs.open(path))
        0
        """
        keys, changed = _array(_words(options)), ctypes.c_size_t()
        (given,) = _array([path])

        def save(_: Any = before) -> None:  # an abandoned call still reads it
            check(library.stfs_save_delta(before._handle, self._handle, given, keys, len(keys), ctypes.byref(changed)))

        interruptibly(save, self._handle)
        return int(changed.value)

    def cancel(self) -> None:
        """Ends the calls that wait for a network, in all threads, with stfs.Cancelled."""
        library.stfs_cancel(self._handle)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *exception: Any) -> None:
        """Does nothing: the checkpoint closes when neither it nor an array of it is used any more."""

    def __reduce__(self) -> Tuple[Any, Tuple[List[str], List[str]]]:
        if library.stfs_has_secrets(self._handle):
            raise UsageError("a URL of a source or a layer has a query, or a user and a password, and a pickle may hold no "
                             "secret: open it in the other process (a fork's child reads on), or let credentials come "
                             "from ~/.netrc, AWS_* or HF_TOKEN", 2)
        return Checkpoint, (self.sources, [*self._texts(library.stfs_option), f"version={self.version}"])
