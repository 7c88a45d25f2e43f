"""A program goes on with an output that is sealed only if it is what the program itself would have written."""

import subprocess
from collections import Counter

import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.plan.origin import make_fingerprint
from persist.dataflow import Program, Running, col
from persist.errors import OutputConflict
from tests.compute.dataflow.ledger import rows_at
from tests.support.forks import forked_python

K, V = {"k": pa.int64()}, {"v": pa.int64()}


def counting() -> Program:
    """Return a program that counts what is given to it, by key."""
    program = Program("counting")
    program.input("x", key=K, value=V).group_by("k").count("n").persist("counts", key=["k"])
    return program


def give(running: Running, first: int, end: int) -> None:
    """Give one record of key 1 at each time of [first, end)."""
    running["x"].insert([((1, time), time, 1) for time in range(first, end)])
    running["x"].advance_to(end)
    running.step()


def summing(*, by: int = 1) -> Program:
    program = Program("summing")
    source = program.source("numbers", schema={"k": pa.int64(), "v": pa.int64()})
    source.map(k=col("k"), v=col("v") * by).group_by("k").agg(total=col("v").sum()).persist("sums", key=["k"])
    return program


def numbers(client: persist.Client, value: int, *, seal: int) -> persist.Collection:
    made = client.create_or_load("numbers", key=K, value=V)
    made.write([((1, value), 0, 1)]).result()
    made.seal(seal).result()
    return made


def test_what_was_given_to_an_input_is_given_again_from_the_first_time_on(client: persist.Client) -> None:
    with counting().open(client) as running:
        give(running, 0, 3)
    with counting().open(client) as running:
        give(running, 0, 5)
    counts = client.load("counts")
    for time in range(5):
        assert rows_at(counts, time) == Counter({(1, time + 1): 1})


def test_a_program_whose_input_lacks_what_was_given_before_writes_nothing(client: persist.Client) -> None:
    with counting().open(client) as running:
        give(running, 0, 3)
    with counting().open(client) as running:
        for _ in range(2):
            with pytest.raises(OutputConflict, match=r"output 'counts'.*insert all their updates again"):
                give(running, 3, 5) if running["x"].frontier.elements == (0,) else running.step()
    assert client.load("counts").upper == persist.Antichain(3)
    with counting().open(client) as running:
        give(running, 0, 4)
    assert rows_at(client.load("counts"), 3) == Counter({(1, 4): 1})


def test_a_program_whose_input_is_begun_anew_can_correct_its_outputs(client: persist.Client) -> None:
    with counting().open(client) as running:
        give(running, 0, 3)
    with counting().open(client, replace=True) as running:
        give(running, 3, 5)
    counts = client.load("counts")
    assert [rows_at(counts, time) for time in (2, 3, 4)] == [Counter({(1, n): 1}) for n in (3, 1, 2)]


def test_an_output_that_somebody_has_filled_before_is_an_error_that_names_it(client: persist.Client) -> None:
    source = numbers(client, 5, seal=1)
    filled = client.create_or_load("sums", key={"k": pa.int64()}, value={"total": pa.int64()})
    filled.write([((9, 9), 0, 1)]).result()
    filled.seal(1).result()
    source.seal(3).result()
    with summing().open(client) as running, pytest.raises(OutputConflict, match=r"output 'sums'.*replace=True"):
        running.step()
    assert (filled.upper, rows_at(filled, 0)) == (persist.Antichain(1), Counter({(9, 9): 1}))
    with summing().open(client, replace=True) as running:
        running.step()
    assert rows_at(filled, 2) == Counter({(1, 5): 1})


def test_a_source_that_is_another_one_now_is_noticed(client: persist.Client) -> None:
    source = numbers(client, 5, seal=1)
    with summing().open(client) as running:
        running.step()
    source.drop().result()
    numbers(client, 7, seal=3)
    with summing().open(client) as running, pytest.raises(OutputConflict, match="its sources have changed"):
        running.step()
    assert rows_at(client.load("sums"), 0) == Counter({(1, 5): 1})


@pytest.mark.parametrize("is_same", [True, False])
def test_a_program_that_was_dropped_goes_on_if_it_is_the_same(client: persist.Client, is_same: bool) -> None:
    source = numbers(client, 5, seal=1)
    with summing().open(client) as running:
        running.step()
    summing().drop(client)
    source.seal(2).result()
    with summing(by=1 if is_same else 2).open(client) as running:
        if is_same:
            running.step()
        else:
            with pytest.raises(OutputConflict, match="output 'sums'"):
                running.step()
    assert client.load("sums").upper == persist.Antichain(2 if is_same else 1)


def filtering(above: int, *, by_function: bool = False) -> Program:
    program = Program("filtering")
    source = program.source("numbers", schema={"k": pa.int64(), "v": pa.int64()})
    kept = source.filter(lambda row: row.v > above) if by_function else source.filter(col("v") > above)
    kept.persist("kept", key=["k"])
    return program


@pytest.mark.parametrize("by_function", [False, True])
def test_a_program_that_was_changed_does_not_go_on_with_what_it_wrote_before(
    client: persist.Client, by_function: bool
) -> None:
    source = numbers(client, 5, seal=1)
    with filtering(3, by_function=by_function).open(client) as running:
        running.run(until=0)
    source.write([((2, 7), 1, 1)]).result()
    source.seal(2).result()
    with (
        pytest.raises(OutputConflict, match=r"'kept'.*open it with replace=True"),
        filtering(6, by_function=by_function).open(client) as running,
    ):
        running.run(until=1)
    assert client.load("kept").upper == persist.Antichain(1)
    with filtering(6, by_function=by_function).open(client, replace=True) as running:
        running.run(until=1)
    assert rows_at(client.load("kept"), 1) == Counter({(2, 7): 1})
    with filtering(6, by_function=by_function).open(client) as running:
        running.run(until=1)


def test_a_changed_program_that_gives_the_same_goes_on_and_is_the_one_that_is_known(client: persist.Client) -> None:
    source = numbers(client, 5, seal=1)
    with filtering(3).open(client) as running:
        running.run(until=0)
    known = client.load("kept").properties
    source.write([((2, 7), 1, 1)]).result()
    source.seal(2).result()
    with filtering(4).open(client) as running:
        running.run(until=1)
    kept = client.load("kept")
    assert rows_at(kept, 1) == Counter({(1, 5): 1, (2, 7): 1})
    assert known.keys() == kept.properties.keys() == {"persist.dataflow"}
    assert known != kept.properties


def test_a_program_that_is_built_again_in_another_process_has_the_same_fingerprint() -> None:
    script = (
        "from tests.compute.dataflow.test_output_origin import filtering, summing\n"
        "from persist.compute.dataflow.plan.origin import make_fingerprint\n"
        "print(make_fingerprint(filtering(3, by_function=True).plan, 'kept'), make_fingerprint(summing().plan, 'sums'))"
    )
    elsewhere = subprocess.run([*forked_python(), "-c", script], capture_output=True, text=True, check=True).stdout
    here = [
        make_fingerprint(filtering(3, by_function=True).plan, "kept"),
        make_fingerprint(summing().plan, "sums"),
        make_fingerprint(summing(by=2).plan, "sums"),
        make_fingerprint(filtering(4, by_function=True).plan, "kept"),
    ]
    assert elsewhere == f"{here[0]} {here[1]}\n"
    assert len(set(here)) == 4


def test_a_changed_program_takes_no_count_from_what_it_wrote_before(client: persist.Client) -> None:
    def counted(above: int) -> Program:
        program = Program("counted")
        source = program.source("numbers", schema={"k": pa.int64(), "v": pa.int64()})
        source.filter(col("v") > above).group_by("k").count("n").persist("counts", key=["k"])
        return program

    source = numbers(client, 5, seal=1)
    with counted(3).open(client) as running:
        running.run(until=0)
    source.write([((1, 7), 1, 1)]).result()
    source.seal(2).result()
    with pytest.raises(OutputConflict, match="'counts'"), counted(6).open(client) as running:
        running.run(until=1)
    with counted(6).open(client, replace=True) as running:
        running.run(until=1)
    assert rows_at(client.load("counts"), 1) == Counter({(1, 1): 1})
