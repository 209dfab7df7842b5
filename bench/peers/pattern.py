"""Counts the matches of a pattern with a library for graphs or tables.

pattern.py LIBRARY EDGES PATTERN: EDGES is a file with a line "from,to" for each edge, without loops
and parallel edges, and PATTERN is a list such as a-b,b-c of edges between different nodes. Prints
the time in milliseconds and the number of matches.
"""

import sys
import tempfile
import time

library, path, text = sys.argv[1:]
pattern = [tuple(edge.split("-")) for edge in text.split(",")]
names = sorted({name for edge in pattern for name in edge})
edges = [tuple(map(int, line.split(","))) for line in open(path)]
count = 1 + max(max(edge) for edge in edges)
different = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]

if library == "igraph":
    import igraph

    graph = igraph.Graph(count, edges, directed=True)
    small = [(names.index(a), names.index(b)) for a, b in pattern]
    small = igraph.Graph(len(names), small, directed=True)

    def run():
        return graph.count_subisomorphisms_vf2(small)

elif library == "rustworkx":
    import rustworkx

    graph = rustworkx.PyDiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from_no_data(edges)
    small = rustworkx.PyDiGraph()
    small.add_nodes_from(names)
    small.add_edges_from_no_data([(names.index(a), names.index(b)) for a, b in pattern])

    def run():
        maps = rustworkx.vf2_mapping(graph, small, subgraph=True, induced=False)
        return sum(1 for _ in maps)

elif library == "duckdb":
    import duckdb

    tables = duckdb.connect()
    source = "SELECT column0 s, column1 t FROM read_csv(?, header=false)"
    tables.execute(f"CREATE TABLE edge AS {source}", [path])
    columns = {}
    conditions = []
    for i, (a, b) in enumerate(pattern):
        for name, column in ((a, f"e{i}.s"), (b, f"e{i}.t")):
            if name in columns:
                conditions.append(f"{columns[name]} = {column}")
            columns.setdefault(name, column)
    conditions += [f"{columns[a]} <> {columns[b]}" for a, b in different]
    tables_of = ", ".join(f"edge e{i}" for i in range(len(pattern)))
    query = f"SELECT count(*) FROM {tables_of} WHERE {' AND '.join(conditions)}"

    def run():
        return tables.execute(query).fetchone()[0]

elif library == "kuzu":
    import kuzu

    folder = tempfile.TemporaryDirectory()
    connection = kuzu.Connection(kuzu.Database(folder.name + "/graph"))
    nodes = folder.name + "/nodes.csv"
    open(nodes, "w").writelines(f"{i}\n" for i in range(count))
    connection.execute("CREATE NODE TABLE V(id INT64, PRIMARY KEY(id))")
    connection.execute("CREATE REL TABLE E(FROM V TO V)")
    connection.execute(f"COPY V FROM '{nodes}' (header=false)")
    connection.execute(f"COPY E FROM '{path}' (header=false)")
    match = ", ".join(f"({a}:V)-[:E]->({b}:V)" for a, b in pattern)
    where = " AND ".join(f"id({a}) <> id({b})" for a, b in different)
    query = f"MATCH {match} WHERE {where} RETURN count(*)"

    def run():
        return connection.execute(query).get_next()[0]

begin = time.perf_counter()
matches = run()
print(f"value {1e3 * (time.perf_counter() - begin)} checksum {matches:016x}")
