"""Indexes as NumPy's: what a key selects of a shape, as one int or range for each dimension."""

import operator
from typing import Any, Optional, Sequence, Tuple, Union

Axis = Union[int, range]  # an int removes its dimension


def whole(shape: Sequence[int]) -> Tuple[Axis, ...]:
    return tuple(range(size) for size in shape)


def shape_of(axes: Sequence[Axis]) -> Tuple[int, ...]:
    return tuple(len(axis) for axis in axes if isinstance(axis, range))


def _pick(axis: range, item: Any, dimension: int) -> Axis:
    if isinstance(item, slice):
        picked = axis[item]
        if picked.step < 0:
            raise ValueError(f"dimension {dimension}: steps must be positive; reverse the array instead")
        return picked
    # An array or a mask with one element also has an __index__, but means something else.
    is_array = getattr(item, "shape", ()) != () or "bool" in str(getattr(item, "dtype", ""))
    if isinstance(item, bool) or is_array or not hasattr(item, "__index__"):
        raise TypeError(f"dimension {dimension}: {item!r}: integers, slices and ... can be indexes; for lists, "
                        "masks and None index the array: tensor.numpy()[...]")
    try:
        return axis[operator.index(item)]
    except IndexError:
        raise IndexError(f"index {item} lies outside of dimension {dimension}, of size {len(axis)}") from None


def select(axes: Sequence[Axis], key: Any) -> Tuple[Axis, ...]:
    """Returns what `key` selects from the selection `axes`."""
    items = key if isinstance(key, tuple) else (key,)
    kept = [i for i, axis in enumerate(axes) if isinstance(axis, range)]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have one ...")
    named = len(items) - len(dots)
    if named > len(kept):
        raise IndexError(f"too many indexes: {named} for {len(kept)} dimensions")
    fill = (slice(None),) * (len(kept) - named)
    at = dots[0] if dots else len(items)
    items = items[:at] + fill + items[at + 1:]
    picked = list(axes)
    for dimension, (place, item) in enumerate(zip(kept, items)):
        axis = axes[place]
        assert isinstance(axis, range)
        picked[place] = _pick(axis, item, dimension)
    return tuple(picked)


def expression(axes: Sequence[Axis]) -> bytes:
    """Returns the slice in the form that the library reads: "0:128:1,3"."""
    def item(axis: Axis) -> str:
        if isinstance(axis, int):
            return str(axis)
        return f"{axis.start}:{axis.stop}:{axis.step}" if len(axis) else "0:0"

    return ",".join(map(item, axes)).encode()


def strides(axes: Sequence[Axis], shape: Sequence[int]) -> Tuple[int, Tuple[int, ...]]:
    """Returns the position of the first element, and for each dimension the distance to the next one, in elements."""
    first, distance = 0, 1
    kept = []
    for axis, size in zip(reversed(axes), reversed(shape)):
        if isinstance(axis, range):
            first += axis.start * distance if len(axis) else 0
            kept.append(axis.step * distance)
        else:
            first += axis * distance
        distance *= size
    return first, tuple(reversed(kept))


def run(axes: Sequence[Axis], shape: Sequence[int]) -> Optional[int]:
    """Returns the position of the first element if all elements are contiguous, else None."""
    first, distances = strides(axes, shape)
    expected = 1
    for distance, size in zip(reversed(distances), reversed(shape_of(axes))):
        if size == 0:
            return 0
        if size > 1 and distance != expected:
            return None
        expected *= size
    return first
