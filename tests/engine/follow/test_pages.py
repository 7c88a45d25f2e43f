"""Tables of pages hold what a dict would, whatever is merged with what; idle objects are taken over."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persist.blob.errors import CorruptBlob
from persist.blob.protocol import MemoryBlob
from persist.core.state_rules.frozen_map import FrozenMap, merge_sorted
from persist.engine.follow import directory_pages as pages
from persist.engine.follow.directory_pages import Item, Pages, Table, Writing, rewrite_table
from tests.support.tiers import examples

KEYS = st.text("abc", min_size=1, max_size=4)
VALUES = st.none() | st.text("xyz", max_size=12)
CHANGES = st.dictionaries(KEYS, VALUES, max_size=12)


def encoded(changes: Mapping[str, str | None]) -> list[Item]:
    return [(key, json.dumps(changes[key]).encode()) for key in sorted(changes)]


def table(blob: MemoryBlob, objects: tuple[Pages, ...], before: FrozenMap[str]) -> Table[str]:
    return Table(blob, objects, lambda _, data: str(json.loads(data)), before)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 30)
    monkeypatch.setattr(pages, "OBJECT_BYTES_MAX", 80)
    monkeypatch.setattr(pages, "KNOWN_PAGES", 2)


@settings(max_examples=examples(300, quick=15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CHANGES, st.sampled_from(["memory", "level", "merge", "merge all"])), max_size=8))
def test_a_map_over_tables_is_what_a_dict_would_be(steps: list[tuple[dict[str, str | None], str]]) -> None:
    blob, model = MemoryBlob(), dict[str, str]()
    levels: list[Table[str]] = []
    befores: list[FrozenMap[str]] = [FrozenMap()]
    now: FrozenMap[str] = FrozenMap()
    for seqno, (changes, how) in enumerate(steps):
        model = {key: value for key, value in {**model, **changes}.items() if value is not None}
        last, now = now, now.with_changes(changes)
        assert {k: v for k, v in {**last, **now.changes_since(last)}.items() if v is not None} == model
        if how != "memory":
            newer, oldest = iter(encoded(now.changes_since(befores[-1]))), None
            joined = {"level": 0, "merge": min(1, len(levels)), "merge all": len(levels)}[how]
            for n in range(joined):
                oldest = levels.pop()
                befores.pop()
                newer = merge_sorted(newer, oldest.iterate_json()) if n < joined - 1 else newer
            made = rewrite_table(Writing(seqno, blob.set), newer, oldest, keeps_gone=bool(levels))
            levels.append(table(blob, made, befores[-1]))
            now = FrozenMap(below=levels[-1])
            befores.append(now)
            if len(levels) == 1:
                assert {key for key, _ in levels[0].iterate_json()} == model.keys(), (
                    "nothing that is gone, or was replaced"
                )
    assert dict(now.iterate_all()) == model
    assert [key for key, _ in now.iterate_prefix("ab")] == sorted(key for key in model if key.startswith("ab"))
    for key in ("", "a", "ab", "abc", "abca", "b", "cc", "d", *model):
        assert now.get(key) == model.get(key)
        assert (key in now) is (key in model)
    assert len(now) == len(model)


def test_only_objects_into_which_something_falls_are_written_again() -> None:
    blob = MemoryBlob()
    items = {f"{n:03}": "x" * 10 for n in range(100)}
    first = rewrite_table(Writing(0, blob.set), iter(encoded(items)), None, keeps_gone=False)
    assert len(first) > 10
    assert all(object_.bytes >= 80 for object_ in first[:-1])
    known = table(blob, first, FrozenMap())
    second = rewrite_table(
        Writing(1, blob.set), iter(encoded({"050": "y", "0505": "z", "051": None})), known, keeps_gone=False
    )
    assert 1 <= len({*first} - {*second}) <= 2
    after = dict(FrozenMap(below=table(blob, second, FrozenMap())).iterate_all())
    assert after == {**{key: value for key, value in items.items() if key != "051"}, "050": "y", "0505": "z"}


def test_small_objects_are_joined_with_their_neighbours() -> None:
    blob = MemoryBlob()
    small = [rewrite_table(Writing(n, blob.set), iter([(f"{n}", b'"v"')]), None, keeps_gone=False)[0] for n in range(8)]
    made = rewrite_table(Writing(9, blob.set), iter([]), table(blob, tuple(small), FrozenMap()), keeps_gone=False)
    assert len(made) == 1
    assert [key for key, _ in table(blob, made, FrozenMap()).iterate_json()] == [f"{n}" for n in range(8)]


def test_a_value_that_no_writer_would_make_is_damage_of_the_object_that_holds_it() -> None:
    blob = MemoryBlob()

    def decoded(key: str, data: bytes) -> str:
        if key == "b":
            raise ValueError("no value")
        return str(json.loads(data))

    made = rewrite_table(Writing(1, blob.set), iter(encoded({"a": "x", "b": "y", "c": "z"})), None, keeps_gone=False)
    now: FrozenMap[str] = FrozenMap(below=Table(blob, made, decoded, FrozenMap()))
    assert (now.get("a"), now.get("c")) == ("x", "z")
    with pytest.raises(CorruptBlob, match="no writer would make it: no value") as caught:
        now.get("b")
    assert caught.value.key == made[0].blob
