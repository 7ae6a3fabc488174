"""The versions of a run, as a trainer publishes them."""

import ctypes
import os
import warnings
from typing import Any, Iterator, Optional

from ._checkpoint import Source, _array, _words
from ._errors import Unreadable
from ._library import check, interruptibly, library, slot


def follow(directory: Source, latest: bool = False, marker: Optional[str] = None, **options: Any) -> Iterator[str]:
    """The path, or URL, of each complete version in a directory as it appears, the oldest first; never ends.

    The directory is one of this machine, s3://bucket/prefix or hf://org/model. With `latest` the newest version
    alone. `marker` names a file that a version must have too. When the directory cannot be read it warns, once,
    and waits until it can. Further options are those about remote sources (see stfs.open).

    >>> [os.path.basename(version) for version in stfs.follow(run, latest=True)]
    ['weight_v000002']
    """
    return _versions(_Follower(os.fspath(directory), {**options, "latest": latest, "marker": marker}), latest)


class _Follower:
    def __init__(self, directory: str, options: Any):
        (given,), words = _array([directory]), _array(_words(options))
        self._owner, place = slot(b"stfs_follower")  # an abandoned call still needs it
        check(library.stfs_follow(given, words, len(words), place))
        self._handle = place[0]

    def next(self) -> Optional[str]:
        version = ctypes.c_char_p()
        check(library.stfs_next_version(self._handle, ctypes.byref(version)))
        return None if version.value is None else os.fsdecode(version.value)

    def cancel(self) -> None:
        library.stfs_follow_cancel(self._handle)


def _versions(follower: _Follower, latest: bool) -> Iterator[str]:
    while True:
        try:
            version = interruptibly(follower.next)
        except Unreadable as error:
            if latest:
                raise
            warnings.warn(f"{error}: trying again", stacklevel=2)
            continue
        except BaseException:
            follower.cancel()
            raise
        if version is None:
            return
        yield version
