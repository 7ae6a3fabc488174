"""Compares the pictures of a mount with NumPy's own picture of each array, decoded by Pillow.

pictures.py png MOUNT           every file in .stfs/png
pictures.py slices MOUNT        slices of every tensor in .stfs/png-slice
pictures.py histograms MOUNT    every file in .stfs/hist, with numpy.histogram
pictures.py palette MOUNT       the colours of one picture
pictures.py exact MOUNT         mean and std in .stfs/stats, with exact arithmetic
Prints "ok" and the number of files compared, or fails.
"""
import fractions
import glob
import json
import math
import os
import sys
import xml.etree.ElementTree

import numpy
import PIL.Image

MAX_SIDE = 2048
ZERO, INFINITY, NAN, NONE = 126, 253, 254, 255
FLT_MAX = numpy.float64(numpy.finfo('f4').max)


def tensors(mount):
    return json.load(open(mount + '/.stfs/tensors.json'))


def values(mount, tensor):
    """The tensor as float64."""
    stfs, path, shape = mount + '/.stfs/', tensor['path'], tensor['shape']
    dtype = {'F64': '<f8', 'BOOL': '?', 'U8': 'u1', 'I8': 'i1', 'U16': '<u2', 'I16': '<i2', 'U32': '<u4',
             'I32': '<i4', 'U64': '<u8', 'I64': '<i8'}.get(tensor['dtype'])
    if dtype:
        return numpy.fromfile(mount + '/' + path, dtype).astype('f8').reshape(shape)
    return numpy.fromfile(stfs + 'f32/' + path, '<f4').astype('f8').reshape(shape)


def stats(mount, tensor):
    return json.load(open(mount + '/.stfs/stats/' + tensor['path'] + '.json'))


def rectangle(array):
    """Returns the array with two dimensions, and a mask of the elements that exist."""
    if array.ndim > 1:
        flat = array.reshape(-1, array.shape[-1])
        return flat, numpy.ones(flat.shape, bool)
    width = 1
    while width * width < array.size:
        width *= 2
    height = -(-array.size // width)
    there = numpy.arange(width * height) < array.size
    flat = numpy.zeros(width * height)
    flat[:array.size] = array.ravel()
    return flat.reshape(height, width), there.reshape(height, width)


def expected_picture(array, std):
    flat, there = rectangle(array)
    rows, columns = (-(-n // MAX_SIDE) for n in flat.shape)
    height, width = -(-flat.shape[0] // rows), -(-flat.shape[1] // columns)
    padded = numpy.zeros((height * rows, width * columns))
    padded[:flat.shape[0], :flat.shape[1]] = flat
    exists = numpy.zeros(padded.shape, bool)
    exists[:flat.shape[0], :flat.shape[1]] = there
    def blocks(a):
        return a.reshape(height, rows, width, columns).swapaxes(1, 2).reshape(height, width, -1)
    padded, exists = blocks(padded), blocks(exists)
    rank = numpy.where(numpy.isnan(padded), numpy.inf, numpy.abs(padded))
    rank = numpy.where(numpy.isinf(padded), FLT_MAX * 2, rank)
    # Of two values with equal magnitude, the positive value is shown.
    order = numpy.lexsort((padded > 0, numpy.where(exists, rank, -1)), axis=-1)
    found = numpy.take_along_axis(padded, order[..., -1:], -1)[..., 0]
    found = numpy.where(numpy.isfinite(found), numpy.clip(found, -FLT_MAX, FLT_MAX), found).astype('f4').astype('f8')
    with numpy.errstate(all='ignore'):
        strength = numpy.clip(found / (3 * std), -1, 1) if std else numpy.sign(found)
    strength = numpy.where(found == 0, 0, strength)
    picture = numpy.where(numpy.isfinite(found), ZERO + numpy.rint(numpy.nan_to_num(strength) * ZERO), INFINITY)
    picture = numpy.where(numpy.isnan(found), NAN, picture)
    return numpy.where(exists.any(-1), picture, NONE).astype('u1')


def check_picture(path, array, std):
    want = expected_picture(array, std)
    height, width = want.shape
    size = 831 + height * (13 + width + 5 * -(-(width + 1) // 65535))
    assert os.stat(path).st_size == size, (path, os.stat(path).st_size, size)
    # Read parts first, while the kernel has cached no page.
    fd = os.open(path, os.O_RDONLY)
    random = numpy.random.default_rng(len(path))
    parts = [(int(random.integers(size)), int(random.integers(1, 300_000))) for _ in range(4)]
    read = [os.pread(fd, length, offset) for offset, length in parts]
    os.close(fd)
    data = open(path, 'rb').read()
    assert len(data) == size, path
    for (offset, length), bytes_read in zip(parts, read):
        assert bytes_read == data[offset:offset + length], (path, offset, length)
    with PIL.Image.open(path) as image:
        image.load()
        assert (image.format, image.mode, image.size) == ('PNG', 'P', (width, height)), path
        got = numpy.array(image)
    assert (got == want).all(), (path, numpy.argwhere(got != want)[:4], got[got != want][:4], want[got != want][:4])


def floating(tensor):
    # Includes the quantised types of GGUF.
    return tensor['dtype'] not in ('BOOL', 'C64', 'U8', 'I8', 'U16', 'I16', 'U32', 'I32', 'U64', 'I64')


def png(mount):
    count = 0
    for tensor in tensors(mount):
        path = mount + '/.stfs/png/' + tensor['path'] + '.png'
        shown = floating(tensor) and tensor['bytes'] > 0
        assert os.path.exists(path) == shown, path
        if shown:
            check_picture(path, values(mount, tensor), stats(mount, tensor)['std'])
            count += 1
    return count


def slices(mount):
    count = 0
    for tensor in tensors(mount):
        if not floating(tensor) or not tensor['bytes']:
            continue
        array = values(mount, tensor)
        std = stats(mount, tensor)['std']
        for expression in ('...', '0', '-1', '::2', '1:,0', '...,::3', '...,1:2'):
            path = mount + '/.stfs/png-slice/' + tensor['path'] + '/' + expression + '.png'
            try:
                part = array[eval('numpy.s_[%s]' % expression)]
            except IndexError:
                assert not os.path.exists(path), path
                continue
            if part.size == 0:
                assert not os.path.exists(path), path
                continue
            check_picture(path, part, std)
            count += 1
    return count


def histograms(mount):
    count = 0
    for tensor in tensors(mount):
        path = mount + '/.stfs/hist/' + tensor['path'] + '.svg'
        shown = tensor['dtype'] != 'C64' and 0 not in tensor['shape']
        assert os.path.exists(path) == shown, path
        if not shown:
            continue
        count += 1
        text = open(path, 'rb').read()
        root = xml.etree.ElementTree.fromstring(text)
        assert len(text) < 20_000, (path, len(text))
        array = values(mount, tensor).ravel()
        finite = array[numpy.isfinite(array)]
        found = root.find('{*}metadata')
        assert (found is not None) == (finite.size > 0), path
        if found is None:
            continue
        found = json.loads(found.text)
        low, high = found['low'], found['high']
        want, _ = numpy.histogram(finite, 128, (low, high))
        assert found['counts'] == want.tolist(), path
        assert found['below'] == (finite < low).sum() and found['above'] == (finite > high).sum(), path
        assert sum(found['counts']) + found['below'] + found['above'] == finite.size, path
        ordered = numpy.sort(finite)
        exact = tensor['dtype'] in ('BOOL', 'U8', 'I8', 'F16', 'BF16') or tensor['dtype'].startswith(('F4', 'F6_', 'F8_'))
        for share, value in found['quantiles'].items():
            rank = max(1, math.ceil(float(share) * finite.size))
            want = ordered[rank - 1]
            if abs(want) > FLT_MAX or 0 < abs(want) < 2 ** -126:  # an F64 value outside the cells
                continue
            assert value == want if exact else abs(value - want) <= abs(want) / 512, (path, share, value, want)
    return count


def palette(mount):
    path = mount + '/.stfs/png/' + next(t['path'] for t in tensors(mount) if floating(t) and t['bytes']) + '.png'
    with PIL.Image.open(path) as image:
        colors = numpy.array(image.getpalette()).reshape(256, 3)
    assert (colors[ZERO] == 255).all()
    red, _, blue = colors.T
    assert (red[ZERO + 1:253] >= blue[ZERO + 1:253]).all() and (blue[:ZERO] >= red[:ZERO]).all()

    # CIELAB, as seen by people with all cones, and without one kind (Machado, Oliveira and Fernandes, 2009).
    kinds = {
        'all': numpy.eye(3),
        'protanopia': [[.152286, 1.052583, -.204868], [.114503, .786281, .099216], [-.003882, -.048116, 1.051998]],
        'deuteranopia': [[.367322, .860646, -.227968], [.280085, .672501, .047413], [-.011820, .042940, .968881]],
        'tritanopia': [[1.255528, -.076749, -.178779], [-.078411, .930809, .147602], [.004733, .691367, .303900]],
    }
    part = colors / 255
    linear = numpy.where(part <= .04045, part / 12.92, ((part + .055) / 1.055) ** 2.4)
    to_xyz = numpy.array([[.4124, .3576, .1805], [.2126, .7152, .0722], [.0193, .1192, .9505]])
    for kind, matrix in kinds.items():
        xyz = numpy.clip(linear @ numpy.array(matrix).T, 0, 1) @ to_xyz.T / [.9505, 1, 1.089]
        f = numpy.where(xyz > .008856, numpy.cbrt(xyz), 7.787 * xyz + 16 / 116)
        lab = numpy.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], -1)
        for marked in (INFINITY, NAN, NONE):
            others = numpy.delete(lab, marked, 0)
            distance = numpy.sqrt(((others - lab[marked]) ** 2).sum(-1)).min()
            assert distance > 20, (kind, marked, distance)
        # Opposite signs differ visibly once the magnitude differs visibly from zero.
        for step in range(20, 127):
            assert numpy.linalg.norm(lab[ZERO + step] - lab[ZERO - step]) > 10, (kind, step)
        assert (numpy.diff(lab[ZERO:253, 0]) <= .2).all() and (numpy.diff(lab[:ZERO + 1, 0]) >= -.2).all(), kind
    return 1


def exact(mount):
    count = 0
    for tensor in tensors(mount):
        found = stats(mount, tensor)
        if tensor['dtype'] == 'C64' or found['min'] is None:
            continue
        array = values(mount, tensor).ravel()
        finite = [fractions.Fraction(float(x)) for x in array[numpy.isfinite(array)]]
        mean = sum(finite) / len(finite)
        variance = sum((x - mean) ** 2 for x in finite) / len(finite)
        bound = max(abs(x) for x in finite) / 2 ** 40
        assert abs(fractions.Fraction(found['mean']) - mean) <= bound, (tensor['name'], found)
        # Compares squares, because a square root is not exact.
        std = fractions.Fraction(found['std'])
        assert max(0, std - bound) ** 2 <= variance <= (std + bound) ** 2, (tensor['name'], found)
        count += 1
    return count


if __name__ == '__main__':
    print('ok', globals()[sys.argv[1]](sys.argv[2]))
