"""TPC-H: its tables at any scale, its queries, and refreshes that change them."""

import random
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
_TEXT = (Path(__file__).parent / "tpch.sql").read_text(encoding="utf-8")
QUERIES = {
    name: text.strip().rstrip(";")
    for name, text in re.findall(r"^-- (q\d+)\n(.*?)(?=^-- |\Z)", _TEXT, re.DOTALL | re.MULTILINE)
}


def generated(folder: Path, scale: float) -> dict[str, pa.Table]:
    """Return the tables at a scale, made by the package tpchgen-cli, in types that collections have."""
    if not (folder / "lineitem.parquet").exists():
        tool = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
        command = [str(tool), "parquet", "--scale-factor", str(scale), "--output-dir", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    return {name: _plain(pq.read_table(folder / f"{name}.parquet")) for name in TABLES}


def _plain(table: pa.Table) -> pa.Table:
    kinds = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    return table.cast(pa.schema([(field.name, kinds.get(field.type, field.type)) for field in table.schema]))


class Refreshes:
    """Tables that change: each step takes rows away and brings others, as a share of orders and their lines.

    Half of the changes bring back, altered, what was there: prices, quantities, dates and keys are drawn from the rows
    themselves, so that they fall on both sides of what queries ask for.
    """

    def __init__(self, tables: dict[str, pa.Table], seed: int) -> None:
        self.tables = dict(tables)
        self._random = random.Random(seed)
        self._step = 0

    def step(self, share: float) -> dict[str, tuple[pa.Table, pa.Table]]:
        """Return of each changed table the rows that go and the rows that come."""
        self._step += 1
        orders = self.tables["orders"]
        count = max(2, round(orders.num_rows * share))
        gone = self._random.sample(range(orders.num_rows), count)
        keys = orders["o_orderkey"].take(gone)
        lines = self.tables["lineitem"].filter(pc.is_in(self.tables["lineitem"]["l_orderkey"], keys.combine_chunks()))
        found = {"orders": self._exchanged("orders", orders.take(gone)), "lineitem": self._exchanged("lineitem", lines)}
        other = self._random.choice(["part", "supplier", "customer", "partsupp", "nation"])
        rows = self._random.sample(range(self.tables[other].num_rows), min(2, self.tables[other].num_rows))
        found[other] = self._exchanged(other, self.tables[other].take(rows))
        return found

    def replaced(self, share: float) -> dict[str, tuple[pa.Table, pa.Table]]:
        """Return the orders that go and those that come, half of a share each, with their lines.

        Those that come are like others that stay, under new keys: as of a day's trade.
        """
        orders = self.tables["orders"]
        count = max(1, round(orders.num_rows * share / 2))
        picked = self._random.sample(range(orders.num_rows), 2 * count)
        gone, like = orders["o_orderkey"].take(picked[:count]), orders["o_orderkey"].take(picked[count:])
        first = pc.max(orders["o_orderkey"]).as_py() + 1
        found = {}
        for name, key in (("orders", "o_orderkey"), ("lineitem", "l_orderkey")):
            table = self.tables[name]
            goes = pc.is_in(table[key], gone.combine_chunks())
            come = table.filter(pc.is_in(table[key], like.combine_chunks()))
            keys = pc.add(pc.index_in(come[key], like.combine_chunks()).cast(pa.int64()), first)
            come = come.set_column(table.schema.get_field_index(key), table.schema.field(key), keys)
            found[name] = table.filter(goes), come
            self.tables[name] = pa.concat_tables([table.filter(pc.invert(goes)), come])
        return found

    def some(self, name: str, share: float) -> tuple[pa.Table, pa.Table]:
        """Return the rows of one table that go, as a share of it, and those that come."""
        self._step += 1
        rows = self.tables[name].num_rows
        return self._exchanged(
            name, self.tables[name].take(self._random.sample(range(rows), max(2, round(rows * share))))
        )

    def _exchanged(self, name: str, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Take rows away, and bring as many back of which one column has the values of other rows."""
        table = self.tables[name]
        columns = [column for column in table.column_names if not column.endswith("key")] + ["l_suppkey"] * (
            name == "lineitem"
        )
        altered = rows
        for column in self._random.sample(columns, min(3, len(columns))):
            places = [self._random.randrange(table.num_rows) for _ in range(rows.num_rows)]
            at = altered.schema.get_field_index(column)
            altered = altered.set_column(at, altered.schema.field(at), table[column].take(places))
        if self._step % 2 == 0:
            altered = altered.slice(0, altered.num_rows // 2)
        key = [column for column in table.column_names if column.endswith(("key", "number"))]
        marks = rows.select(key).append_column("_gone", pa.array([True] * rows.num_rows))
        kept = table.join(marks, key, join_type="left anti").select(table.column_names).cast(table.schema)
        self.tables[name] = pa.concat_tables([kept, altered])
        return rows, altered


if __name__ == "__main__":
    generated(Path(sys.argv[1]), float(sys.argv[2]))
