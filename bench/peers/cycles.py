"""Asks for the ten nodes in the most cycles of three edges, each time after an edge has moved.

cycles.py graphblas EDGES MOVES: EDGES is a file with a line "from,to" for each edge. The n-th line
of MOVES begins with the new target of the n-th edge. Prints the time of a change in microseconds,
without the first evaluation, and a checksum of the answers.
"""

import sys
import time

import graphblas as gb
import numpy as np

_, path, moves = sys.argv[1:]
edges = [tuple(map(int, line.split(","))) for line in open(path)]
moves = [int(line.split(",")[0]) for line in open(moves)]
count = 1 + max(max(edge) for edge in edges)
sources, targets = map(np.array, zip(*edges))
ones = np.ones(len(edges), dtype=np.int64)
out = gb.Matrix.from_coo(
    sources, targets, ones, nrows=count, ncols=count, dup_op=gb.binary.plus
)


def most():
    back = out.T.new()
    # Paths of two edges, where an edge closes the cycle.
    paths = gb.Matrix(gb.dtypes.INT64, count, count)
    paths(back.S) << gb.semiring.plus_times(out @ out)
    cycles = paths.ewise_mult(back, gb.binary.times).reduce_rowwise(gb.monoid.plus)
    nodes, numbers = cycles.new().to_coo()
    first = np.lexsort((nodes, -numbers))[:10]
    return [int(n) for pair in zip(nodes[first], numbers[first]) for n in pair]


checksum = 0
seconds = 0.0
for turn, target in enumerate(moves):
    begin = time.perf_counter()
    answer = most()
    seconds += time.perf_counter() - begin if turn > 0 else 0.0
    for number in answer:
        checksum = (checksum * 31 + number) % 1_000_003
    source, old = edges[turn]
    left = out.get(source, old) - 1
    if left:
        out[source, old] = left
    else:
        del out[source, old]
    out[source, target] = out.get(source, target, 0) + 1
print(f"value {1e6 * seconds / (len(moves) - 1)} checksum {checksum:016x}")
