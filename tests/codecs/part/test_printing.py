"""Sets of long texts that are not ASCII: Arrow fails to print them, and conditions with them work."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.codecs.part.filters import list_referenced_columns, may_compare_with_nan
from persist.codecs.part.printing import print_filter

LONG = ["ä" * 60, "x" + "ä" * 60]


def test_a_filter_that_arrow_cannot_print_still_tells_what_is_in_it() -> None:
    within = pc.field("s").isin(pa.array(LONG))
    with pytest.raises(UnicodeDecodeError):
        str(within)
    assert print_filter(within).startswith("... ")
    assert "is_in(" in print_filter(within)
    assert "sqrt(" in print_filter(within & (pc.sqrt(pc.field("x")) > 1))
    assert may_compare_with_nan(within & (pc.sqrt(pc.field("x")) > 1))
    schema = pa.schema({"s": pa.string(), "x": pa.float64()})
    assert "s" in list_referenced_columns(within, schema)


@pytest.mark.parametrize("is_keyed", [False, True])
def test_long_texts_may_be_in_a_set(is_keyed: bool) -> None:
    inside = f"s in ('{LONG[0]}', '{LONG[1]}')"
    with persist.open(persist.MemoryBlob()) as client:
        keyed = persist.Keyed() if is_keyed else None
        texts = client.create_or_load("texts", key={"s": str}, value={"n": int, "doc": persist.JSON}, keyed=keyed)
        texts.upsert([(s, (n, '{"a": 1}')) for n, s in enumerate([*LONG, "b"])], time=0).result()
        texts.seal(1).result()
        texts.compact()
        assert texts.snapshot(where=inside).count() == 2
        assert "filter" in str(texts.snapshot(where=inside).explain())
        assert len(texts.get(where=f"{inside} and n = 0")) == 1
        with client.sql(f"SELECT n FROM texts WHERE {inside} OR s = 'c'") as answer:
            assert sorted(answer.to_arrow()["n"].to_pylist()) == [0, 1]
        texts.overwrite([(LONG[0], (7, None))], where=inside).result()
        texts.erase(where=inside, reason="request 17")
        texts.delete(where=f"not {inside}").result()
        assert texts.snapshot().count() == 0
