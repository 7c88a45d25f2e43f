"""Random queries over the tables of the oracle: joins, subqueries, groups, set operations, windows, recursion.

A query is drawn from a seed, so a failure is found again by its number; `smaller` tries seeds of less depth. Types are
kept apart, so that DuckDB accepts nearly all of them, and what raises by design is left out.
"""

import random
from dataclasses import dataclass

from tests.compute.sql.oracle import TABLES

KINDS = {
    "int32": "n",
    "int64": "n",
    "decimal(12,2)": "m",
    "decimal(30,4)": "m",
    "double": "f",
    "text": "s",
    "date": "d",
}
KINDS |= {"timestamp": "ts", "boolean": "p"}
Scope = list[tuple[str, str]]  # What can be referred to, and its kind.


@dataclass
class Relation:
    """Something to select from: its text, and its columns with their kinds."""

    text: str
    columns: Scope


class Grammar:
    """Draws one query."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        self.random = random.Random(seed)
        self.depth = depth
        self._names = 0

    def query(self) -> str:
        relation = self.select(self.depth, [])
        if self.random.random() < 0.12:
            return self.recursion()
        return relation.text

    def name(self, prefix: str = "c") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def pick(self, scope: Scope, kind: str) -> str:
        """Return an expression of a kind."""
        found = [column for column, each in scope if each == kind]
        draw = self.random.random()
        if kind == "i" and draw < (0.3 if found else 0.75):
            number, ts, other = self.pick(scope, "n"), self.pick(scope, "ts"), self.pick(scope, "ts")
            return self.random.choice([f"to_days(15 * {number})", f"to_months({number})", f"({ts} - {other})"])
        if found and draw < 0.75:
            return self.random.choice(found)
        return self.constant(kind)

    def constant(self, kind: str) -> str:
        values = {
            "n": ["0", "1", "2", "3", "NULL::INTEGER"],
            "m": ["1.50", "0.00", "-2.25"],
            "f": ["0.0::DOUBLE", "1.5::DOUBLE"],
            "s": ["'x'", "'abc'", "''", "NULL::VARCHAR"],
            "d": ["DATE '2020-02-10'"],
            "ts": ["TIMESTAMP '2020-01-15 12:00:00'"],
            "i": ["INTERVAL 1 MONTH", "INTERVAL 30 DAY", "INTERVAL 36 HOUR", "NULL::INTERVAL"],
            "p": ["true", "false", "NULL::BOOLEAN"],
            "x": ["2::HUGEINT", "NULL::HUGEINT"],
            "l": ["[1, 2]", "NULL::INTEGER[]"],
        }
        return self.random.choice(values[kind])

    def expression(self, scope: Scope, kind: str, depth: int) -> str:
        if depth <= 0 or self.random.random() < 0.5:
            return self.pick(scope, kind)
        one, other = (self.expression(scope, kind, depth - 1) for _ in range(2))
        condition = self.condition(scope, depth - 1)
        shared = [
            f"CASE WHEN {condition} THEN {one} ELSE {other} END",
            f"coalesce({one}, {other})",
            f"nullif({one}, {other})",
        ]
        own = {
            "n": [
                f"({one} + {other})",
                f"({one} - {other})",
                f"({one} * 2)",
                f"abs({one})",
                f"greatest({one}, {other})",
            ],
            "m": [f"({one} + 1)", f"(-({one}))", f"least({one}, {other})"],
            "f": [f"({one} + 1.5::DOUBLE)", f"({one} * 2)"],
            "s": [f"upper({one})", f"({one} || 'z')", f"left({one}, 1)", f"concat({one}, {other})"],
            "d": [f"({one} + 1)", f"greatest({one}, {other})"],
            "ts": [f"({one} + INTERVAL 1 DAY)", f"date_trunc('day', {one})"],
            "i": [f"({one} + {other})", f"(-({one}))", f"greatest({one}, {other})"],
            "p": [condition],
        }
        return self.random.choice([*shared, *own[kind]])

    def condition(self, scope: Scope, depth: int) -> str:
        kind = self.random.choice(["n", "n", "n", "m", "f", "s", "d", "ts", "i"])
        one, other = self.expression(scope, kind, depth - 1), self.expression(scope, kind, depth - 1)
        choices = [f"{one} {self.random.choice(['=', '<>', '<', '<=', '>', '>='])} {other}"] * 4
        choices += [
            f"{one} IS NULL",
            f"{one} IS NOT DISTINCT FROM {other}",
            f"{one} IN ({other}, {self.constant(kind)})",
        ]
        choices += [f"{one} BETWEEN {other} AND {self.constant(kind)}"]
        pair = f"({one}, {self.pick(scope, 's')}) {self.random.choice(['=', '<', 'IS DISTINCT FROM'])}"
        choices += [f"{pair} ({other}, {self.pick(scope, 's')})"] if self.random.random() < 0.3 else []
        if kind == "s":
            choices += [f"{one} LIKE '{self.random.choice(['x%', '%y', '_', '%a%', 'a%c'])}'"] * 3
        if depth > 0:
            more = self.condition(scope, depth - 1)
            choices += [f"({choices[0]} AND {more})", f"({choices[0]} OR {more})", f"NOT ({more})"]
        return self.random.choice(choices)

    def table(self) -> Relation:
        name = self.random.choice(list(TABLES))
        alias = self.name("t")
        if name != "u" and self.random.random() < 0.15:
            return self.time_windows(name, alias)
        return Relation(f"{name} {alias}", [(f"{alias}.{column}", KINDS[kind]) for column, kind in TABLES[name]])

    def time_windows(self, name: str, alias: str) -> Relation:
        at, by = {"t": ("d", "a"), "w": ("ts", "p")}[name]
        day, other = (f"INTERVAL {self.random.randint(1, 20)} DAY" for _ in range(2))
        calls = [f"tumble({name}, {at}, {day})", f"hop({name}, {at}, INTERVAL 5 DAY, {other})"]
        calls += [f"session({name}, {at}, {day})", f"session({name}, {at}, {day}, {by})"] * 2
        columns = [(f"{alias}.{column}", KINDS[kind]) for column, kind in TABLES[name]]
        return Relation(f"{self.random.choice(calls)} {alias}", [*columns, (f"{alias}.window_end", "ts")])

    def source(self, depth: int) -> Relation:
        if depth > 0 and self.random.random() < 0.3:
            inner, alias = self.select(depth - 1, []), self.name("q")
            return Relation(f"({inner.text}) {alias}", [(f"{alias}.{column}", kind) for column, kind in inner.columns])
        return self.table()

    def joined(self, depth: int) -> Relation:
        left = self.source(depth)
        for _ in range(self.random.choice([0, 0, 1, 1, 2])):
            right = self.source(depth - 1)
            both = [*left.columns, *right.columns]
            if depth > 0 and self.random.random() < 0.12:
                left = self.lateral(left, right)
                continue
            if self.random.random() < 0.05:
                left = self.nearest(left)
                continue
            how = self.random.choice(
                ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN", "SEMI JOIN", "ANTI JOIN"]
            )
            keys = [(one, other) for one, a in left.columns for other, b in right.columns if a == b]
            on = []
            for one, other in self.random.sample(keys, min(len(keys), self.random.choice([1, 1, 2]))):
                on.append(f"{one} {self.random.choice(['=', '=', '=', 'IS NOT DISTINCT FROM'])} {other}")
            if self.random.random() < 0.25 or not on:
                on.append(self.condition(both, 1))
            text = f"{left.text} {how} {right.text}" + ("" if how == "CROSS JOIN" else f" ON {' AND '.join(on)}")
            left = Relation(text, left.columns if how in ("SEMI JOIN", "ANTI JOIN") else both)
        return left

    def nearest(self, left: Relation) -> Relation:
        """Return each row with what is nearest to it: one column of others, so that no rows of these agree.

        DuckDB 2.0.1 never ends with some queries of ASOF RIGHT and FULL JOIN; `test_queries` has these.
        """
        alias = self.name("q")
        how, sign = (self.random.choice(each) for each in (["", "LEFT"], ["<", "<=", ">", ">="]))
        text = f"{left.text} ASOF {how} JOIN (SELECT DISTINCT b FROM u) {alias} ON "
        return Relation(
            f"{text}{self.expression(left.columns, 'n', 1)} {sign} {alias}.b", [*left.columns, (f"{alias}.b", "n")]
        )

    def lateral(self, left: Relation, right: Relation) -> Relation:
        """Return a relation joined with a subquery that reads its columns."""
        both = [*left.columns, *right.columns]
        kinds = self.random.sample(["n", "s", "f", "m"], self.random.randint(1, 2))
        columns = [(self.name(), kind) for kind in kinds]
        shown = ", ".join(f"{self.expression(both, kind, 1)} AS {name}" for name, kind in columns)
        body = self.random.choice(
            [
                f"SELECT {shown} FROM {right.text} WHERE {self.condition(both, 1)}",
                f"SELECT DISTINCT {shown} FROM {right.text} WHERE {self.condition(both, 1)}",
                f"VALUES ({', '.join(self.expression(left.columns, kind, 1) for kind in kinds)})",
            ]
        )
        if self.random.random() < 0.2:
            columns = [(self.name(), "n")]
            of = ", ".join(self.pick(left.columns, "n") for _ in range(2))
            body = f"SELECT CAST(e.value AS INTEGER) FROM json_each(to_json([{of}])) e"
        alias = self.name("q")
        how = self.random.choice([", LATERAL", " CROSS JOIN LATERAL", " LEFT JOIN LATERAL"])
        on = " ON true" if "LEFT" in how else ""
        names = ", ".join(name for name, _ in columns)
        found = [*left.columns, *((f"{alias}.{name}", kind) for name, kind in columns)]
        return Relation(f"{left.text}{how} ({body}) {alias}({names}){on}", found)

    def scalar(self, scope: Scope, depth: int) -> tuple[str, str]:
        """Return a subquery of one value that may refer to what is outside, and the kind of the value."""
        inner = self.source(depth - 1)
        both = [*inner.columns, *scope]
        where = f" WHERE {self.condition(both, 1)}"
        kind = self.random.choice(["n", "s", "m", "d"])
        own = self.expression(inner.columns, kind, 1)
        every = ", ".join(name for name, _ in inner.columns)
        return self.random.choice(
            [
                (f"(SELECT {self.random.choice(['min', 'max'])}({own}) FROM {inner.text}{where})", kind),
                (f"(SELECT count({own}) FROM {inner.text}{where})", "n"),
                (f"(SELECT {own} FROM {inner.text}{where} ORDER BY {every} LIMIT 1)", kind),
                (f"({self.subquery(scope, depth)})", "p"),
            ]
        )

    def subquery(self, scope: Scope, depth: int) -> str:
        """Return a condition with a subquery, which may refer to what is outside."""
        inner = self.source(depth - 1)
        both = [*inner.columns, *scope]
        kinds = {kind for _, kind in inner.columns} & {kind for _, kind in scope}
        kind = self.random.choice(sorted(kinds)) if kinds else "n"
        outer, own = self.pick(scope, kind), self.pick(inner.columns, kind)
        where = f" WHERE {self.condition(both, 1)}" if self.random.random() < 0.7 else ""
        compare = f"{self.random.choice(['<', '=', '>='])} {self.random.choice(['ANY', 'ALL'])}"
        return self.random.choice(
            [
                f"{outer} IN (SELECT {own} FROM {inner.text}{where})",
                f"{outer} NOT IN (SELECT {own} FROM {inner.text}{where})",
                f"EXISTS (SELECT 1 FROM {inner.text}{where})",
                f"NOT EXISTS (SELECT 1 FROM {inner.text}{where})",
                f"{outer} {compare} (SELECT {own} FROM {inner.text}{where})",
                f"{outer} > (SELECT {self.random.choice(['max', 'min'])}({own}) FROM {inner.text}{where})",
                f"(SELECT count(*) FROM {inner.text}{where}) > {self.random.randint(0, 3)}",
            ]
        )

    def select(self, depth: int, outer: Scope) -> Relation:
        draw = self.random.random()
        if depth > 0 and draw < 0.12:
            return self.set_operation(depth)
        source = self.joined(depth)
        where = ""
        if self.random.random() < 0.6:
            where = f" WHERE {self.condition([*source.columns, *outer], 2)}"
        if depth > 0 and self.random.random() < 0.35:
            where += (" AND " if where else " WHERE ") + self.subquery(source.columns, depth)
        if draw < 0.4:
            return self.grouped(source, where)
        if draw < 0.52:
            return self.windowed(source, where)
        columns = [
            (self.name(), self.random.choice(["n", "n", "m", "s", "d", "f", "p", "ts", "i"]))
            for _ in range(self.random.randint(1, 3))
        ]
        made = [(self.expression(source.columns, kind, 2), name, kind) for name, kind in columns]
        if depth > 0 and self.random.random() < 0.2:
            value, kind = self.scalar(source.columns, depth)
            made.append((value, self.name(), kind))
            columns = [(name, kind) for _, name, kind in made]
        shown = ", ".join(f"{text} AS {name}" for text, name, _ in made)
        every = ", ".join(name for name, _ in source.columns)
        if self.random.random() < 0.1:
            # The order is total, but for rows that are equal in all columns.
            down = self.random.choice(["", " DESC", " NULLS FIRST"])
            first = self.random.choice(source.columns)[0]
            on = self.random.choice([f"DISTINCT ON ({first}) ", ""])
            end = "" if on else f" LIMIT {self.random.randint(1, 4)} OFFSET {self.random.randint(0, 2)}"
            return Relation(
                f"SELECT {on}{shown} FROM {source.text}{where} ORDER BY {first}{down}, {every}{end}", columns
            )
        distinct = "DISTINCT " if self.random.random() < 0.2 else ""
        text = f"SELECT {distinct}{shown} FROM {source.text}{where}"
        if self.random.random() < 0.2:
            # A total order: DuckDB breaks ties as it likes.
            order = ", ".join(
                f"{name} {self.random.choice(['', 'DESC'])} {self.random.choice(['', 'NULLS FIRST'])}"
                for name, _ in columns
            )
            text += f" ORDER BY {order} LIMIT {self.random.randint(0, 4)}"
            if self.random.random() < 0.4:
                text += f" OFFSET {self.random.randint(0, 2)}"
        return Relation(text, columns)

    def aggregate(self, scope: Scope) -> tuple[str, str]:
        kind = self.random.choice(["n", "n", "m", "f", "s", "d", "i"])
        of = self.expression(scope, kind, 1)
        options = [("count(*)", "n"), (f"count({of})", "n"), (f"min({of})", kind), (f"max({of})", kind)]
        options += [(f"count(DISTINCT {of})", "n")]
        if kind in ("n", "m"):
            options += [(f"sum({of})", "x"), (f"avg({of})", "f"), (f"sum(DISTINCT {of})", "x")] * 2
        if kind != "i":
            options += [(f"quantile_disc({of}, {self.random.choice(['0.1', '0.5', '1'])})", kind)]
        options += [(f"{self.random.choice(['first', 'last', 'any_value'])}({of} ORDER BY {of} DESC)", kind)]
        if kind == "n":
            options += [
                (f"median({of})", "f"),
                (f"mad({of})", "f"),
                (f"{self.random.choice(['bit_or', 'bit_and'])}({of})", "n"),
            ]
            options += [(f"round(stddev_pop({of}), 5)", "f"), (f"list({of} ORDER BY {of})", "l")]
        if kind == "s":
            options += [(f"string_agg({self.random.choice(['', 'DISTINCT '])}{of}, '|' ORDER BY {of})", "s")]
        text, result = self.random.choice(options)
        if self.random.random() < 0.2:
            text += f" FILTER (WHERE {self.condition(scope, 1)})"
        return text, result

    def grouped(self, source: Relation, where: str) -> Relation:
        keys = [
            (self.name(), self.random.choice(["n", "n", "s", "d", "f", "m", "i"]))
            for _ in range(self.random.choice([0, 1, 1, 2]))
        ]
        exact = [(name, kind, self.expression(source.columns, kind, 1)) for name, kind in keys]
        made = [(self.name(), *self.aggregate(source.columns)) for _ in range(self.random.randint(1, 3))]
        shown = ", ".join(
            [*(f"{text} AS {name}" for name, _, text in exact), *(f"{text} AS {name}" for name, text, _ in made)]
        )
        text = f"SELECT {shown} FROM {source.text}{where}"
        if exact:
            groups = ", ".join(str(at + 1) for at in range(len(exact)))
            sets = [f"ROLLUP ({groups})", f"CUBE ({groups})", f"GROUPING SETS (({groups}), (1), ())"]
            text += f" GROUP BY {self.random.choice([groups, groups, groups, *sets])}"
            if self.random.random() < 0.3:
                least = self.random.randint(0, 2)
                text += f" HAVING {self.aggregate(source.columns)[0]} IS NOT NULL AND count(*) > {least}"
        columns = [(name, kind) for name, kind, _ in exact] + [(name, kind) for name, _, kind in made]
        return Relation(text, columns)

    def windowed(self, source: Relation, where: str) -> Relation:
        every = ", ".join(name for name, _ in source.columns)
        partition = self.random.sample([name for name, _ in source.columns], self.random.choice([0, 1, 1]))
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        value = self.pick(source.columns, "n")
        exclude = self.random.choice(["NO OTHERS", "CURRENT ROW", "TIES", "GROUP"])
        functions = [
            f"row_number() OVER ({by}ORDER BY {every})",
            f"rank() OVER ({by}ORDER BY {value})",
            f"dense_rank() OVER ({by}ORDER BY {value} DESC)",
            f"lag({value}) OVER ({by}ORDER BY {every})",
            f"lead({value}, 2, -1) OVER ({by}ORDER BY {every})",
            f"lag({value}, {self.pick(source.columns, 'n')}) OVER ({by}ORDER BY {every})",
            f"nth_value({value}, {self.pick(source.columns, 'n')}) OVER ({by}ORDER BY {every})",
            f"ntile(1 + abs({self.pick(source.columns, 'n')})) OVER ({by}ORDER BY {every})",
            f"count(*) OVER ({by})",
            f"max({value}) OVER ({by})",
            f"min({value}) OVER ({by}ORDER BY {every} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
            f"first_value({value}) OVER ({by}ORDER BY {every})",
            f"count({value}) OVER ({by}ORDER BY {value})",
            f"CAST(sum({value}) OVER ({by}ORDER BY {value}) AS INTEGER)",
            f"count(*) OVER ({by}ORDER BY {value} RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE {exclude})",
            f"count(DISTINCT {value}) OVER ({by}ORDER BY {value} GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW)",
            f"last_value({value} IGNORE NULLS) OVER ({by}ORDER BY {every})",
            f"lag({value} IGNORE NULLS) OVER ({by}ORDER BY {every})",
            f"quantile_disc({value}, 0.5) FILTER (WHERE {value} > 0) OVER ({by}ORDER BY {value})",
        ]
        name, other = self.name(), self.name()
        shown = f"{self.pick(source.columns, 'n')} AS {other}, {self.random.choice(functions)} AS {name}"
        asked = ["<= 1", "> 1", "= 1", "< 3", "IN (1, 2)", "BETWEEN 1 AND 2.5"]
        qualify = f" QUALIFY {name} {self.random.choice(asked)}" if self.random.random() < 0.3 else ""
        return Relation(f"SELECT {shown} FROM {source.text}{where}{qualify}", [(other, "n"), (name, "n")])

    def set_operation(self, depth: int) -> Relation:
        kinds = [self.random.choice(["n", "s", "m", "d", "f"]) for _ in range(self.random.randint(1, 2))]
        columns = [(self.name(), kind) for kind in kinds]
        parts = []
        for _ in range(self.random.choice([2, 2, 3, 4])):
            source = self.joined(depth - 1)
            shown = ", ".join(f"{self.expression(source.columns, kind, 1)} AS {name}" for name, kind in columns)
            parts.append(f"(SELECT {shown} FROM {source.text} WHERE {self.condition(source.columns, 1)})")
        while len(parts) > 1:
            how = self.random.choice(["UNION", "UNION ALL", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"])
            at = self.random.randrange(len(parts) - 1)
            made = f"{parts[at]} {how} {parts[at + 1]}"
            parts[at : at + 2] = [f"({made})" if len(parts) > 2 else made]
        return Relation(parts[0], columns)

    def recursion(self) -> str:
        how = self.random.choice(["UNION", "UNION", "UNION ALL"])
        step = self.random.choice(
            [
                "SELECT u.b, r.n + 1 FROM r JOIN u ON u.a = r.x WHERE r.n < 3",
                "SELECT r.x + 1, r.n + 1 FROM r WHERE r.n < 3 AND r.x IN (SELECT a FROM t)",
                "SELECT coalesce(u.b, 0), 0 + r.n + 1 FROM r LEFT JOIN u ON u.a = r.x WHERE r.n < 2",
                "SELECT max(x), max(n) + 1 FROM r HAVING max(n) < 3",
                "SELECT u.b, 1 + (SELECT max(n) FROM r) FROM u WHERE u.a > (SELECT max(x) FROM r WHERE n < 2)",
                "SELECT u.b, r.n + 1 FROM u FULL JOIN r ON u.a = r.x WHERE r.n < 2",
                "(SELECT x, n + 1 FROM r WHERE n < 3 ORDER BY x, n LIMIT 1)",
            ]
        )
        last = self.random.choice(
            ["SELECT * FROM r", "SELECT x, count(*) AS k FROM r GROUP BY x", "SELECT max(n) AS k FROM r"]
        )
        return f"WITH RECURSIVE r(x, n) AS (SELECT a, 0 FROM t {how} {step}) {last}"
