"""What NumPy, torch and ml_dtypes call the dtypes of the formats."""

from typing import Any, Dict, NamedTuple, Optional


class Type(NamedTuple):
    itemsize: int                     # bytes per element; 0: elements share bytes
    typestr: Optional[str] = None     # in NumPy's array interface; None: elements share bytes
    ml_dtypes: Optional[str] = None   # the name in ml_dtypes of a type that NumPy lacks
    torch: Optional[str] = None


TYPES: Dict[str, Type] = {
    "BOOL": Type(1, "|b1", None, "bool"),
    "U8": Type(1, "|u1", None, "uint8"), "I8": Type(1, "|i1", None, "int8"),
    "U16": Type(2, "<u2", None, "uint16"), "I16": Type(2, "<i2", None, "int16"),
    "U32": Type(4, "<u4", None, "uint32"), "I32": Type(4, "<i4", None, "int32"),
    "U64": Type(8, "<u8", None, "uint64"), "I64": Type(8, "<i8", None, "int64"),
    "F16": Type(2, "<f2", None, "float16"), "BF16": Type(2, "|V2", "bfloat16", "bfloat16"),
    "F32": Type(4, "<f4", None, "float32"), "F64": Type(8, "<f8", None, "float64"),
    "C64": Type(8, "<c8", None, "complex64"),
    "F8_E4M3": Type(1, "|V1", "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": Type(1, "|V1", "float8_e5m2", "float8_e5m2"),
    "F8_E8M0": Type(1, "|V1", "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": Type(1, "|V1", "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": Type(1, "|V1", "float8_e5m2fnuz", "float8_e5m2fnuz"),
}
PACKED = Type(0)


def type_of(dtype: str) -> Type:
    return TYPES.get(dtype, PACKED)


def in_ml_dtypes(array: Any, name: Optional[str]) -> Any:
    """Returns a void array with the type of ml_dtypes if that package is installed, else unchanged."""
    if name is None:
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    found = getattr(ml_dtypes, name, None)
    return array if found is None else array.view(found)
