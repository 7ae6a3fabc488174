"""Capsules of DLPack: the library makes the structs, and frees them."""

from typing import Any

from ._errors import UsageError
from ._library import check, library, release, slot


def capsule(checkpoint: Any, part: Any, is_versioned: bool) -> Any:
    function = library.stfs_export if is_versioned else library.stfs_export_unversioned

    def export() -> Any:
        owner, place = slot(b"dltensor_versioned" if is_versioned else b"dltensor")
        check(function(checkpoint._handle, part, 0, place))
        return release(owner)

    try:
        return checkpoint._run(export)
    except UsageError as error:
        raise BufferError(str(error)) from None
