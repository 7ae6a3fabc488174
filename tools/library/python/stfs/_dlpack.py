"""Capsules of DLPack: the library makes the structs, and frees them."""

from typing import Any, Callable

from ._errors import UsageError
from ._library import check, library, release, slot


def exported(is_versioned: bool, export: Callable[[Any], None]) -> Any:
    """Calls `export` with the place for its result. Returns an object that frees it; release() makes a capsule."""
    owner, place = slot(b"dltensor_versioned" if is_versioned else b"dltensor")
    export(place)
    return owner


def capsule(checkpoint: Any, part: Any, is_versioned: bool) -> Any:
    function = library.stfs_export if is_versioned else library.stfs_export_unversioned
    try:
        return checkpoint._run(lambda: release(exported(
            is_versioned, lambda place: check(function(checkpoint._handle, part, 0, place)))))
    except UsageError as error:
        raise BufferError(str(error)) from None
