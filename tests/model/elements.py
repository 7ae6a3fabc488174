"""The 22 element types of safetensors: how many bits an element has, and its value as NumPy computes it.

Nothing here is taken from stfs: the tables come from the definitions of the types.
"""

import dataclasses
import math

import numpy as np


def small_float(code, exponent_bits, mantissa_bits, bias):
    """Returns the value of a finite code of a small binary floating type."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2.0**mantissa_bits) * 2.0 ** (exponent - bias)


def table(bits, exponent_bits, mantissa_bits, bias, special=lambda code: None):
    """Returns the float32 value of each code. `special` gives the value of a code that is not a finite number."""
    values = []
    for code in range(1 << bits):
        value = special(code)
        values.append(small_float(code, exponent_bits, mantissa_bits, bias) if value is None else value)
    return np.array(values, np.float32)


def e5m2_special(code):
    if code & 0x7C != 0x7C:
        return None
    return math.nan if code & 3 else (-math.inf if code & 0x80 else math.inf)


TABLES = {
    "F4": table(4, 2, 1, 1),
    "F6_E2M3": table(6, 2, 3, 1),
    "F6_E3M2": table(6, 3, 2, 3),
    "F8_E4M3": table(8, 4, 3, 7, lambda code: math.nan if code & 0x7F == 0x7F else None),
    "F8_E5M2": table(8, 5, 2, 15, e5m2_special),
    "F8_E4M3FNUZ": table(8, 4, 3, 8, lambda code: math.nan if code == 0x80 else None),
    "F8_E5M2FNUZ": table(8, 5, 2, 16, lambda code: math.nan if code == 0x80 else None),
    "F8_E8M0": np.array([2.0 ** (code - 127) for code in range(255)] + [math.nan], np.float32),
}

# The bits of an element, NumPy's type that holds its code, and the type that a .npy file names ("" if NumPy has none).
BITS_CODES_NPY = {
    "BOOL": (8, "|u1", "|b1"), "F4": (4, "|u1", ""), "F6_E2M3": (6, "|u1", ""), "F6_E3M2": (6, "|u1", ""),
    "U8": (8, "|u1", "|u1"), "I8": (8, "|i1", "|i1"), "F8_E5M2": (8, "|u1", "|V1"), "F8_E4M3": (8, "|u1", "|V1"),
    "F8_E8M0": (8, "|u1", "|V1"), "F8_E4M3FNUZ": (8, "|u1", "|V1"), "F8_E5M2FNUZ": (8, "|u1", "|V1"),
    "I16": (16, "<i2", "<i2"), "U16": (16, "<u2", "<u2"), "F16": (16, "<u2", "<f2"), "BF16": (16, "<u2", "<V2"),
    "I32": (32, "<i4", "<i4"), "U32": (32, "<u4", "<u4"), "F32": (32, "<u4", "<f4"), "C64": (64, "<u8", "<c8"),
    "F64": (64, "<u8", "<f8"), "I64": (64, "<i8", "<i8"), "U64": (64, "<u8", "<u8"),
}
FLOATS = {*TABLES, "F16", "BF16", "F32", "F64"}


def unpack(raw, bits):
    """Returns the codes of elements of 4 or 6 bits; the first element is in the lowest bits."""
    stream = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little").reshape(-1, bits)
    return (stream << np.arange(bits, dtype=np.uint8)).sum(axis=1, dtype=np.uint8)


def pack(codes, bits):
    """The inverse of unpack()."""
    stream = (codes.reshape(-1, 1) >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.reshape(-1), bitorder="little").tobytes()


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A stored tensor: `data` has the bytes in row-major order."""

    dtype: str
    shape: tuple
    data: bytes

    @property
    def bits(self):
        return BITS_CODES_NPY[self.dtype][0]

    @property
    def npy_type(self):
        return BITS_CODES_NPY[self.dtype][2]

    def codes(self):
        """Returns an array of the tensor's shape with one integer per element: its bits."""
        if self.bits < 8:
            return unpack(self.data, self.bits).reshape(self.shape)
        return np.frombuffer(self.data, BITS_CODES_NPY[self.dtype][1]).reshape(self.shape)

    def with_codes(self, codes):
        """Returns the tensor of this type that has these codes, or None if they do not fill whole bytes."""
        if codes.size * self.bits % 8 != 0:
            return None
        flat = np.ascontiguousarray(codes)
        data = pack(flat, self.bits) if self.bits < 8 else flat.tobytes()
        return Tensor(self.dtype, codes.shape, data)

    def values(self):
        """Returns the values as float32, or None if the type is not a floating type."""
        if self.dtype not in FLOATS:
            return None
        codes = self.codes().reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            values = {
                "F16": lambda: codes.view("<f2").astype("<f4"),
                "BF16": lambda: (codes.astype("<u4") << 16).view("<f4"),
                "F32": lambda: codes.view("<f4"),
                "F64": lambda: codes.view("<f8").astype("<f4"),
            }.get(self.dtype, lambda: TABLES[self.dtype][codes])()
        return values.reshape(self.shape)

    def doubles(self):
        """Returns the values as float64, of integers too, or None for C64."""
        if self.dtype == "C64":
            return None
        if self.dtype == "F64":
            return self.codes().reshape(-1).view("<f8").reshape(self.shape)
        if self.dtype in FLOATS:
            with np.errstate(invalid="ignore"):
                return self.values().astype(np.float64)
        codes = self.codes()
        return (codes != 0).astype(np.float64) if self.dtype == "BOOL" else codes.astype(np.float64)


def same_floats(a, b):
    """Compares float32 bytes; any NaN equals any other."""
    if len(a) != len(b):
        return False
    first, second = np.frombuffer(a, "<f4"), np.frombuffer(b, "<f4")
    nans = np.isnan(first)
    return bool((nans == np.isnan(second)).all() and (first.view("<u4")[~nans] == second.view("<u4")[~nans]).all())
