#!/usr/bin/python3
"""How long a fleet takes to read one model, from measured rates: prints the table of MANY_MACHINES.md.

  fleet.py [--size GB] [--shards N] [--node MB/S] [--store MB/S] [--fill MB/S] [--near MB/S]
  fleet.py --check     fails (status 1) unless the page has the table of the default figures
  fleet.py --write     puts it there

All nodes start at the same time and read everything once. One node reads at most at --node, and all nodes together
at most at --store. A cache between them is filled at --fill, and then serves all nodes together at --near.
"""

import argparse
import math
import pathlib
import sys

PAGE = pathlib.Path(__file__).with_name('MANY_MACHINES.md')
MARKS = ('<!-- fleet.py -->\n', '<!-- end -->\n')
REQUEST = 8.388608  # MB: the maximum request of stfs, and a slice of the cache
NODES = (1, 8, 64, 512)


def seconds_direct(nodes, options):
    return options.size * 1000 * max(1 / options.node, nodes / options.store)


def seconds_cached(nodes, options):
    return options.size * 1000 * max(1 / options.fill, nodes / options.near)


def requests(options):
    """Of one reader: a mount, then everything."""
    return options.shards + 2 + math.ceil(options.size * 1000 / REQUEST)


def in_words(seconds):
    if seconds < 90:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'


def table(options):
    rows = ['| nodes | without a cache in between | requests to the store | with one | requests to the store |',
            '|---|---|---|---|---|']
    for nodes in NODES:
        rows.append(f'| {nodes} | {in_words(seconds_direct(nodes, options))} | {nodes * requests(options):,} | '
                    f'{in_words(seconds_cached(nodes, options))} | {requests(options):,} |')
    return '\n'.join(rows) + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--size', type=float, default=16, help='GB of the model')
    parser.add_argument('--shards', type=int, default=4)
    parser.add_argument('--node', type=float, default=212, help='MB/s of one node')
    parser.add_argument('--store', type=float, default=400, help='MB/s of the store, to all nodes')
    parser.add_argument('--fill', type=float, default=65, help='MB/s through the cache while it fills')
    parser.add_argument('--near', type=float, default=280, help='MB/s of the cache, to all nodes')
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--write', action='store_true')
    options = parser.parse_args()
    if min(options.size, options.node, options.store, options.fill, options.near) <= 0 or options.shards < 1:
        parser.error('sizes, rates and shards are greater than 0')
    made = table(options)
    if not options.check and not options.write:
        print(made, end='')
        return 0
    before, rest = PAGE.read_text().split(MARKS[0])
    old, after = rest.split(MARKS[1])
    if options.write:
        PAGE.write_text(before + MARKS[0] + made + MARKS[1] + after)
    elif old != made:
        print(f'{PAGE.name} has another table than fleet.py prints (fleet.py --write)', file=sys.stderr)
        return 1
    return 0


sys.exit(main())
