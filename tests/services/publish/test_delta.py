"""A published Delta table holds exactly what a snapshot does, for readers that nobody here wrote."""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.keyed.machines import AppendDistinct
from persist.services.publish import Published, delta, planning
from tests.services.publish.readers import by_deltalake, by_polars, delta_reader, format_reader, same_rows
from tests.support.tuned import tuned

Read = Callable[[str], pa.Table]
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0, hold_linger_s=0, keyframe_rows_min=1, inline_bytes=0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path / "location", settings=SETTINGS) as client:
        yield client


def orders(client: persist.Client, rows: int = 1000) -> persist.Collection:
    """Return a collection with a keyframe that holds a row for each of the keys from 0 on, as of 0."""
    made = client.create_or_load("orders", key={"id": int}, value={"status": str, "amount": float})
    made.write([((n, (f"s{n % 7}", n / 4)), 0, 1) for n in range(rows)], seal=1).result()
    made.compact()
    return made


def collect(client: persist.Client) -> None:
    """Collect garbage as a client that has read nothing, after this one has closed."""
    client.close()
    with persist.open(client.url, settings=SETTINGS) as other:
        other.gc()


def log_of(table: Published) -> list[dict[str, Any]]:
    """Return the actions of the newest version of a Delta table."""
    path = Path(table.url) / "_delta_log" / f"{table.version:020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def adds(table: Published) -> list[dict[str, Any]]:
    return [action["add"] for action in log_of(table) if "add" in action]


def test_the_next_version_names_only_what_differs(client: persist.Client) -> None:
    c = orders(client)
    c.publish("delta")
    for time in range(1, 4):
        c.write([((time, (f"s{time}", time / 4)), time, -1)], seal=time + 1).result()
        made = c.publish("delta")
        assert same_rows(by_polars(made.url), c) == 1000 - time
        assert ["remove" in action for action in log_of(made)].count(True) == 1
    c.write([((7000, ("x", 0.0)), 4, 1)], seal=5).result()
    assert [add["stats"] is not None for add in adds(c.publish("delta"))] == [True]


def test_a_time_that_is_published_is_not_published_again(client: persist.Client) -> None:
    c = orders(client)
    first, again = c.publish("delta"), c.publish("delta")
    assert (first.is_new, again.is_new, again.version) == (True, False, 0)
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    c.publish("delta")
    older = c.publish("delta", as_of=0)
    assert (older.version, older.as_of) == (2, 0)
    assert same_rows(by_polars(older.url), c, 0) == 1000


def test_a_version_says_which_time_of_which_collection_it_is(client: persist.Client) -> None:
    c = orders(client)
    made = c.publish("delta", digest=True)
    info = log_of(made)[0]["commitInfo"]
    assert (info["persist.as_of"], info["persist.collection"]) == ("0", c.id)
    assert info["persist.digest"] == made.digest == c.snapshot().digest()


def test_other_programs_are_told_not_to_write(client: persist.Client) -> None:
    """Whoever took the table for its own would delete the parts that it does not name."""
    deltalake = pytest.importorskip("deltalake")
    made = orders(client).publish("delta")
    with pytest.raises(Exception, match=r"(?i)unsupported|feature"):
        deltalake.write_deltalake(made.url, pa.table({"id": [1], "status": ["x"], "amount": [1.0]}), mode="append")
    with pytest.raises(Exception, match="retention"):
        deltalake.DeltaTable(made.url).vacuum(retention_hours=0, dry_run=False, full=True)
    assert deltalake.DeltaTable(made.url).vacuum(dry_run=False, full=True) == []
    assert client.fsck().is_clean


@delta_reader
def test_a_table_without_vectors_writes_touched_files_anew(client: persist.Client, read: Read) -> None:
    c = orders(client)
    c.publish("delta", deletes="none")
    c.write([((3, ("s3", 0.75)), 1, -1)], seal=2).result()
    made = c.publish("delta", deletes="none")
    assert not any("deletionVector" in add for add in adds(made))
    protocol = json.loads((Path(made.url) / "_delta_log" / f"{0:020d}.json").read_text().splitlines()[1])["protocol"]
    assert "readerFeatures" not in protocol
    assert same_rows(read(made.url), c) == 999


@format_reader
def test_multiplicities_tombstones_views_and_collections_without_keys_or_rows(
    client: persist.Client, form: Any, read: Read
) -> None:
    def published(c: persist.Collection) -> int:
        return same_rows(read(c.publish(form).url), c)

    c = client.create_or_load("c", key={"k": int}, value={"v": str})
    c.write([((1, "a"), 0, 3), ((2, "b"), 0, 1)], seal=1).result()
    assert published(c) == 4
    c.write([((1, "a"), 1, -2), ((2, "b"), 1, 1)], seal=2).result()
    assert published(c) == 3
    keyed = persist.Keyed(tombstone="gone")
    users = client.create_or_load("users", key={"k": int}, value={"v": str, "gone": bool}, keyed=keyed)
    users.upsert([(k, (f"v{k}", False)) for k in range(500)], time=0, seal=1).result()
    users.upsert([(k, None) for k in range(0, 500, 5)], time=1, seal=2).result()
    assert published(users) == 400
    users.compact()
    users.upsert([(k, (f"w{k}", False)) for k in range(0, 500, 50)], time=2, seal=3).result()
    assert published(users) == 410
    view = client.create_view("sums", "SELECT v, count(*) AS n FROM c GROUP BY v")
    view.refresh()
    assert published(view) == 2
    log = client.create_or_load("log", key=None, value={"line": str})
    log.write([((None, f"line {n % 10}"), 0, 1) for n in range(100)], seal=1).result()
    assert published(log) == 100
    log.write([((None, "line 3"), 1, -1)], seal=2).result()
    assert published(log) == 99
    empty = client.create_or_load("empty", key={"k": int}, value=None)
    with pytest.raises(persist.errors.AsOfNotSealed):
        empty.publish(form)
    empty.seal(1).result()
    assert published(empty) == 0


def test_more_rows_than_a_table_may_have_are_refused(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": int}, value=None)
    c.write([((1, None), 0, 2**62)], seal=1).result()
    with pytest.raises(persist.InvalidUsage, match="rows, and the limit is"):
        c.publish("delta")
    c.write([((1, None), 1, 1 - 2**62), *(((k, None), 1, 1) for k in range(2, 40))], seal=2).result()
    c.publish("delta")
    c.write([((1, None), 2, 2**62)], seal=3).result()
    with pytest.raises(persist.InvalidUsage, match="rows, and the limit is"):
        c.publish("delta")


def test_a_negative_multiplicity_is_refused_and_leaves_nothing(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": int}, value=None)
    c.write([((1, None), 0, -1)], seal=1).result()
    with pytest.raises(persist.errors.NegativeMultiplicity):
        c.publish("delta")
    assert not c.published()
    assert not client.fsck().unreferenced


@pytest.mark.thorough(except_every=3)
@format_reader
def test_columns_that_were_added_renamed_and_named_again_are_read_right(
    client: persist.Client, form: Any, read: Read
) -> None:
    c = client.create_or_load("c", key={"k": int}, value={"a": str, "b": pa.int32()})
    c.write([((k, (f"a{k}", k)), 0, 1) for k in range(300)], seal=1).result()
    c.compact()
    c.publish(form)
    c.evolve(add={"n": pa.float64()})
    made = c.publish(form)
    assert same_rows(read(made.url), client.load("c")) == 300
    lying = {part.blob.rpartition("/")[2] for part in c.handle.contents().numbered.values()}
    if form == "delta":  # A column that is added rewrites nothing.
        assert {file.name for file in Path(made.url).glob("*.parquet")} == lying
    c = client.load("c")
    c.evolve(rename={"a": "old"}, widen={"b": pa.int64()}, drop=["n"])
    c.evolve(add={"a": pa.string(), "n": pa.float64()}, defaults={"n": 0.5})
    c = client.load("c")
    c.write([((1000, ("old", 7, "new", 1.5)), 1, 1)], seal=2).result()
    assert same_rows(read(c.publish(form).url), c) == 301


NESTED = pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))])
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "tiny": (pa.int8(), [-(2**7), None, 2**7 - 1]),
    "small": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "single": (pa.float32(), [0.25, None, float("inf")]),
    "double": (pa.float64(), [float("nan"), None, -0.0]),
    "decimal": (pa.decimal128(20, 3), [Decimal("-12345.678"), None, Decimal(0)]),
    "text": (pa.string(), ["Zürich \N{SNOWMAN}", None, ""]),
    "long_text": (pa.large_string(), ["a", None, "b" * 100]),
    "bytes": (pa.binary(), [b"\x00\xff", None, b""]),
    "day": (pa.date32(), [0, None, -719162]),
    "at": (pa.timestamp("us"), [0, None, 1_700_000_000_000_001]),
    "at_utc": (pa.timestamp("us", "UTC"), [0, None, 1_700_000_000_000_001]),
    "list": (pa.list_(pa.int64()), [[1, None, 3], None, []]),
    "struct": (NESTED, [{"x": None, "y": ["a", None]}, None, {"x": 1, "y": []}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], None, []]),
}


def column_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not pa.types.is_temporal(kind):
        return pa.array(values, kind)
    return pa.array(values, pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)


@pytest.mark.thorough(except_every=3)
@format_reader
def test_all_types_come_back_under_composite_keys(client: persist.Client, form: Any, read: Read) -> None:
    types = TYPES if form == "delta" else {**TYPES, "clock": (pa.time64("us"), [0, None, 86_399_999_999])}
    value = {name: kind for name, (kind, _) in types.items()}
    c = client.create_or_load("c", key={"a": str, "b": pa.int32()}, value=value)
    columns = {name: column_of(kind, values * 2) for name, (kind, values) in types.items()}
    keys = {"a": ["x", "x", "y", "y", None, "z"], "b": pa.array([1, 2, 1, None, 5, 6], pa.int32())}
    rows = pa.table({**keys, **columns})
    c.write(rows, time=0, seal=1).result()
    c.compact()
    assert same_rows(read(c.publish(form).url), c) == 6
    c.delete([("x", 2), ("y", None)], time=1).result()
    c.seal(2).result()
    assert same_rows(read(c.publish(form).url), c) == 4


def test_a_type_that_a_format_has_not_is_refused_with_the_column_and_what_to_do(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": int}, value={"odd": pa.uint8()})
    c.seal(1).result()
    for form in ("delta", "iceberg"):
        with pytest.raises(persist.InvalidUsage, match=rf"^column .odd. of type uint8 .* a {form} .* Publish a view"):
            c.publish(form)
    assert not [*Path(client.url).glob("part/**/_delta_log")]


def test_nested_keys_and_names_that_differ_by_case_are_refused(client: persist.Client) -> None:
    nested = client.create_or_load("nested", key={"k": pa.list_(pa.int64())}, value=None)
    cases = client.create_or_load("cases", key={"k": int}, value={"v": int, "V": int})
    for c, reason in ((nested, "flat keys"), (cases, "differ by case")):
        c.seal(1).result()
        with pytest.raises(persist.InvalidUsage, match=reason):
            c.publish("delta")


def test_an_unknown_format_or_way_to_delete_is_refused(client: persist.Client) -> None:
    c = orders(client, 1)
    with pytest.raises(persist.InvalidUsage, match="table='hudi' is not a format"):
        c.publish("hudi")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="deletes='copy'"):
        c.publish("delta", deletes="copy")  # type: ignore[arg-type]


def test_a_long_log_gets_checkpoints_and_stays_short(client: persist.Client) -> None:
    c = orders(client, 50)
    for time in range(1, 45):
        c.write(
            [((1000 + time, ("x", 1.0)), time, 1), ((time, (f"s{time % 7}", time / 4)), time, -1)], seal=time + 1
        ).result()
        made = c.publish("delta")
    names = sorted(path.name for path in (Path(made.url) / "_delta_log").iterdir())
    assert f"{40:020d}.checkpoint.parquet" in names
    assert "_last_checkpoint" in names
    assert len(names) < 40
    assert same_rows(by_polars(made.url), c) == same_rows(by_deltalake(made.url), c) == 50


def test_a_table_of_somebody_else_is_left_alone(client: persist.Client) -> None:
    deltalake = pytest.importorskip("deltalake")
    c = orders(client, 10)
    root = Path(client.url) / "part" / c.id
    deltalake.write_deltalake(str(root), pa.table({"x": [1]}))
    with pytest.raises(persist.InvalidUsage, match="was not published from 'orders'"):
        c.publish("delta")
    assert deltalake.DeltaTable(str(root)).version() == 0


def random_steps(client: persist.Client, c: persist.Collection, seed: int) -> Iterator[int]:
    """Write to `orders` of 300 rows, compact and collect; yield times that can be read then."""
    r = random.Random(seed)
    held = {n: (f"s{n % 7}", n / 4) for n in range(300)}
    upper = 1
    for _ in range(25):
        match r.randrange(6):
            case 0:
                c.compact()
            case 1:
                c.allow_compaction(max(c.since.time or 0, upper - 1 - r.randrange(2))).result()
                c.compact()
            case 2:
                client.gc()
            case _:
                keys = r.sample(range(600), r.choice([1, 5, 200]))
                rows = [((k, held[k]), upper, -1) for k in keys if k in held]
                new = {k: (f"t{upper}", float(k)) for k in keys if r.random() < 0.7}
                rows += [((k, value), upper, 1) for k, value in new.items()]
                held = {**{k: v for k, v in held.items() if k not in keys}, **new}
                c.write(rows, seal=upper + 1).result()
                upper += 1
        if r.random() < 0.7:
            yield r.randint(c.since.time or 0, upper - 1)


@format_reader
@pytest.mark.thorough(except_every=9)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_times_under_writers_compaction_and_collection(
    client: persist.Client, seed: int, form: Any, read: Read
) -> None:
    c = orders(client, 300)
    for as_of in random_steps(client, c, seed):
        same_rows(read(c.publish(form, as_of=as_of).url), c, as_of)
    upper = c.upper.time or 1
    last = c.published()[0]
    c.allow_compaction(upper - 1).result()
    c.compact()
    client.gc()
    client.gc()
    assert len(read(last.url)) == last.rows, "the table keeps its files"
    assert client.fsck(deep=True).is_clean


def test_rule_22_the_version_before_can_be_read_until_two_later_ones_are_there(client: persist.Client) -> None:
    deltalake = pytest.importorskip("deltalake")
    c = orders(client, 100)

    def publish_next(time: int) -> Published:
        c.write([((n, (f"s{n % 7}", n / 4)), time, -1) for n in (time, time + 50)], seal=time + 1).result()
        c.allow_compaction(time).result()
        c.compact()
        made = c.publish("delta")
        client.gc()
        return made

    made = [publish_next(time) for time in range(1, 5)]
    table = deltalake.DeltaTable(made[-1].url, version=made[-2].version)
    rows = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    assert len(pa.table(rows)) == made[-2].rows
    files = {*Path(made[-1].url).glob("*.parquet")}
    assert len(files) < 8


def test_a_publisher_that_dies_before_it_shows_its_version_is_mended_by_the_next(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = orders(client, 100)
    c.publish("delta")
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    with monkeypatch.context() as patch:

        def die(*_: object) -> bytes:
            raise KeyboardInterrupt

        patch.setattr(delta, "encode_version", die)
        with pytest.raises(KeyboardInterrupt):
            c.publish("delta")
    assert len(by_polars(f"{client.url}/part/{c.id}")) == 100
    c.compact()
    c.allow_compaction(1).result()
    client.gc()
    made = c.publish("delta")
    assert (made.version, made.is_new) == (1, False)
    assert same_rows(by_polars(made.url), c) == 99


def test_two_who_publish_at_once_make_one_version_after_the_other(client: persist.Client) -> None:
    c = orders(client, 100)
    with persist.open(client.url, settings=SETTINGS) as other:
        theirs = other.load("orders")
        for time in range(1, 4):
            c.write([((time, (f"s{time % 7}", time / 4)), time, -1)], seal=time + 1).result()
            with ThreadPoolExecutor(2) as pool:
                one, two = pool.map(lambda each: each.publish("delta"), (c, theirs))
            assert one.version == two.version
            assert one.rows == two.rows == 100 - time
            assert same_rows(by_polars(one.url), c) == 100 - time
    client.gc()
    assert client.fsck().is_clean


def test_unpublish_frees_what_only_the_table_needed(client: persist.Client) -> None:
    c = orders(client, 100)
    assert not c.unpublish("delta")
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    made = c.publish("delta")
    assert c.unpublish("delta")
    assert not c.published()
    assert not (Path(made.url) / "_delta_log").exists() or not [*(Path(made.url) / "_delta_log").iterdir()]
    named = {part.blob.rpartition("/")[2] for part in c.handle.contents().stored_parts}
    collect(client)
    left = {path.name for path in Path(made.url).rglob("*") if path.is_file()}
    assert left == named - {""}
    with persist.open(client.url, settings=SETTINGS) as later:
        again = later.load("orders").publish("delta")
        assert again.version == 0
        assert same_rows(by_polars(again.url), later.load("orders")) == 99


def test_a_collection_that_is_gone_takes_its_table_with_it(client: persist.Client) -> None:
    c = orders(client, 100)
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    made = c.publish("delta")
    c.drop().result()
    collect(client)
    assert not [path for path in Path(made.url).rglob("*") if path.is_file()]


def test_fsck_tells_what_a_table_needs_and_what_it_has_left(client: persist.Client) -> None:
    c = orders(client, 100)
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    made = c.publish("delta")
    report = client.fsck(deep=True)
    assert report.is_clean
    assert not report.unreferenced
    [vectors] = Path(made.url).rglob("*.bin")
    data = vectors.read_bytes()
    vectors.unlink()
    [problem] = client.fsck().problems
    assert problem.kind == "missing"
    assert "a published table needs it" in str(problem)
    vectors.write_bytes(data)
    log = Path(made.url) / "_delta_log" / f"{0:020d}.json"
    kept = log.read_bytes()
    c.unpublish("delta")
    collect(client)
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(kept)
    with persist.open(client.url, settings=SETTINGS) as later:
        [left] = later.fsck().unreferenced
        assert (left.kind, left.blob.endswith("0.json")) == ("table", True)
        later.load("orders").publish("delta")
        assert later.fsck().is_clean


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 12))])
def test_what_a_key_of_a_keyed_collection_holds_is_told_by_its_newest_updates(
    client: persist.Client, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of the other parts are not read, so what the table shows must not depend on them."""
    chance, told = random.Random(seed), 0
    form = persist.Keyed(tombstone="gone") if seed % 2 else persist.Keyed()
    more = {"gone": bool} if seed % 2 else {}
    c = client.create_or_load("c", key={"k": int}, value={"v": str, **more}, keyed=form)
    newest = planning.Planner._read_newest

    def counted(*arguments: Any) -> pa.Table | None:
        nonlocal told
        held = newest(*arguments)
        told += held is not None
        return held

    monkeypatch.setattr(planning.Planner, "_read_newest", counted)
    for time in range(25):
        keys = chance.sample(range(300), chance.choice([300, 250] if time == 0 else [1, 5, 40]))
        value = (f"v{time}", False) if seed % 2 else f"v{time}"
        c.upsert([(k, None if chance.random() < 0.3 else value) for k in keys], time=time, seal=time + 1).result()
        if chance.random() < 0.15:
            c.compact()
        if chance.random() < 0.6:
            as_of = chance.randint(c.since.time or 0, time)
            same_rows(by_polars(c.publish("delta", as_of=as_of).url), c, as_of)
    assert told > 0


@pytest.mark.thorough
@pytest.mark.parametrize("is_following", [True, False])
def test_a_key_that_was_deleted_and_came_again_is_told_by_the_part_with_which_it_came(
    client: persist.Client, is_following: bool
) -> None:
    c = client.create_or_load("c", key={"k": int}, value={"v": str}, keyed=persist.Keyed())
    c.upsert([(k, f"{k * 2654435761 % 2**32:08x}") for k in range(50_000)], time=0, seal=1).result()
    if is_following:
        c.publish("delta")
    c.upsert([(5, None), (6, "w")], time=1, seal=2).result()
    c.upsert(
        [(5, "again"), *((k, f"{k * 40503 % 2**31:08x}") for k in range(60_000, 100_000))], time=2, seal=3
    ).result()
    assert [part.negatives for part in c.handle.contents().history_parts] == [0, 2, 0]
    assert same_rows(by_polars(c.publish("delta").url), c) == 90_000


def test_a_key_of_a_machine_with_several_values_keeps_the_older_ones(client: persist.Client) -> None:
    keyed = persist.Keyed(machine=AppendDistinct())
    c = client.create_or_load("c", key={"k": int}, value={"v": str}, keyed=keyed)
    c.transition([(k, str(k)) for k in range(2000)], time=0, seal=1).result()
    c.publish("delta")
    c.transition([(5, "another")], time=1, seal=2).result()
    assert same_rows(by_polars(c.publish("delta").url), c) == 2001


def test_files_that_are_written_take_at_most_a_quarter_of_the_budget(tmp_path: Path) -> None:
    with persist.open(tmp_path / "location", settings=persist.Settings(memory_budget=16 << 20)) as client:
        c = client.create_or_load("c", key={"id": int}, value={"data": bytes})
        data = [random.Random(number).randbytes(100_000) for number in range(120)]
        c.write([((number, data[number]), number % 2, 1) for number in range(120)], seal=2).result()
        table = c.publish("delta", as_of=0)
        assert table.rows == 60
        assert max(add["size"] for add in adds(table)) < 5 << 20
