"""Capsules of DLPack: the library makes the structs, and frees them."""

import ctypes
from typing import Any

from ._errors import UsageError
from ._library import library, owner


def capsule(checkpoint: Any, part: Any, is_versioned: bool) -> Any:
    exported = ctypes.c_void_p()
    function = library.stfs_export if is_versioned else library.stfs_export_unversioned
    try:
        checkpoint._call(function, part, 0, ctypes.byref(exported))
    except UsageError as error:
        raise BufferError(str(error)) from None
    return owner(exported.value, b"dltensor_versioned" if is_versioned else b"dltensor")
