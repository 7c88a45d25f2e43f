"""Small programs of `persist.dataflow`, each a function from streams to streams: graphs, the game of life, a bank.

Run `python examples/dataflow.py` to see the game of life and a bank at work. The tests hold all of them against plain
recomputation, while what they are given is inserted and taken away.
"""

import pyarrow as pa

from persist.dataflow import Program, Scope, Stream, col, lit, when

EDGES = {"source": pa.int64(), "target": pa.int64()}


def reachable(edges: Stream, roots: Stream) -> Stream:
    """Return the nodes (column node) that can be reached from roots (column node) over edges (source, target)."""

    def body(reached: Stream) -> Stream:
        following = reached.join(edges, {"node": "source"}).map(node=col("target"))
        return (following + roots).distinct()

    return roots.iterate(body, name="reachable")


def transitive_closure(edges: Stream) -> Stream:
    """Return all pairs (source, target) with a path from one to the other."""

    def body(paths: Stream) -> Stream:
        longer = paths.rename({"target": "middle"}).join(edges, {"middle": "source"}).project("source", "target")
        return (longer + edges).distinct()

    return edges.iterate(body, name="transitive closure")


def distances(edges: Stream, roots: Stream) -> Stream:
    """Return for each node that can be reached from roots the least number of edges to it (columns node, distance)."""
    start = roots.map(node=col("node"), distance=lit(0))

    def body(known: Stream) -> Stream:
        following = known.join(edges, {"node": "source"}).map(node=col("target"), distance=col("distance") + 1)
        return (following + start).group_by("node").agg(distance=col("distance").min())

    return start.iterate(body, name="distances")


def components(edges: Stream) -> Stream:
    """Return the edges within strongly connected components.

    In each round, every node learns the least node that reaches it, over the edges that are left, and edges whose ends
    learnt different ones are dropped; then the same over the reversed edges. So an iteration runs inside another.
    """

    def trimmed(left: Stream) -> Stream:
        labels = _least_label(left)
        both = left.join(labels, {"source": "node"}).rename({"label": "one"}).join(labels, {"target": "node"})
        return both.filter(col("one") == col("label")).map(source=col("target"), target=col("source"))

    def body(left: Stream) -> Stream:
        return trimmed(trimmed(left)).distinct()

    return edges.distinct().iterate(body, name="components")


def connected(edges: Stream) -> Stream:
    """Return for each node the least node that is connected with it, over edges in both directions (node, label)."""
    return _least_label(edges + edges.map(source=col("target"), target=col("source")))


def _least_label(edges: Stream) -> Stream:
    """Return for each node the least node from which edges lead to it, or itself (columns node, label).

    Labels enter late, those of twice as many digits 64 iterations later. By then the lesser ones have spread, so a
    greater one goes no further than its own node. If all labels entered at once, each node would learn many of them.
    """
    nodes = edges.map(node=col("source")) + edges.map(node=col("target"))
    own = nodes.distinct().map(node=col("node"), label=col("node"))
    scope: Scope = edges.scope("labels")
    passed = scope.variable("passed", schema={"node": pa.int64(), "label": pa.int64()})
    entered = scope.enter_at(own, col("label").bit_length() * 64)
    labels = (passed + entered).group_by("node").agg(label=col("label").min())
    passed.set(labels.join(edges, {"node": "source"}).map(node=col("target"), label=col("label")))
    return scope.leave(labels)


def page_rank(edges: Stream, rounds: int = 8, surfers: int = 1000) -> Stream:
    """Return how many of the surfers that begin at each node are where after some rounds (columns node, rank).

    Of those at a node, a sixth begins anew, and the others follow its edges in equal shares, rounded down.
    """
    nodes = (edges.map(node=col("source")) + edges.map(node=col("target"))).distinct()
    degrees = edges.group_by(node=col("source")).count("degree")
    ranks = nodes.extend(rank=lit(surfers))
    for _ in range(rounds):
        shares = ranks.join(degrees, "node").map(node=col("node"), share=col("rank") * 5 // (col("degree") * 6))
        sent = shares.join(edges, {"node": "source"}).map(node=col("target"), rank=col("share"))
        ranks = (sent + nodes.extend(rank=lit(surfers // 6))).group_by("node").agg(rank=col("rank").sum())
    return ranks


def next_generation(cells: Stream) -> Stream:
    """Return the cells (x, y) that live in the next generation of the game of life."""
    around = cells.flat_map(
        lambda cell: [(cell[0] + dx, cell[1] + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if dx or dy],
        schema={"x": pa.int64(), "y": pa.int64()},
    )
    crowds = around.group_by("x", "y").count("neighbours")
    born = crowds.filter(col("neighbours") == 3).project("x", "y")
    stays = crowds.filter(col("neighbours") == 2).project("x", "y").semijoin(cells, ["x", "y"])
    return (born + stays).distinct()


def generations(cells: Stream, count: int) -> Stream:
    """Return the cells that live after so many generations."""
    for _ in range(count):
        cells = next_generation(cells)
    return cells


def bank(transfers: Stream) -> dict[str, Stream]:
    """Return credits, debits and balances of accounts, and their total, which is 0 at every time.

    Args:
        transfers: columns source, target, amount.
    """
    credits_ = transfers.group_by(account=col("target")).agg(credits=col("amount").sum())
    debits = transfers.group_by(account=col("source")).agg(debits=col("amount").sum())
    moves = transfers.map(account=col("target"), amount=col("amount")) + transfers.map(
        account=col("source"), amount=-col("amount")
    )
    balances = moves.group_by("account").agg(balance=col("amount").sum())
    total = balances.group_by().agg(total=col("balance").sum())
    return {"credits": credits_, "debits": debits, "balances": balances, "total": total}


def main() -> None:
    life = Program("life")
    cells = life.input("cells", key={"x": pa.int64(), "y": pa.int64()})
    after = [generations(cells, count).capture() for count in range(4)]
    with life.open() as running:
        running["cells"].insert([((cell, None), 0, 1) for cell in [(1, 0), (2, 1), (0, 2), (1, 2), (2, 2)]])
        running["cells"].advance_to(1)
        running.step()
    for count, seen in enumerate(after):
        alive = {record for record, _, _ in seen.rows()}
        print(f"a glider after {count} generations")
        print("\n".join("".join("#" if (x, y) in alive else "." for x in range(5)) for y in range(5)))

    program = Program("bank")
    key = {"id": pa.int64()}
    given = program.input(
        "transfers", key=key, value={"source": pa.string(), "target": pa.string(), "amount": pa.int64()}
    )
    made = bank(given)
    rich = made["balances"].extend(kind=when(col("balance") >= 0, "owns").otherwise("owes")).capture()
    total = made["total"].capture()
    with program.open() as running:
        for time, transfer in enumerate([("ann", "bob", 10), ("bob", "cid", 4), ("cid", "ann", 1)]):
            running["transfers"].insert([((time, transfer), time, 1)])
            running["transfers"].advance_to(time + 1)
            running.step()
    print("balances, as updates (record, time, diff):")
    for update in rich.rows():
        print(" ", update)
    print("their total:", total.rows())


if __name__ == "__main__":
    main()
