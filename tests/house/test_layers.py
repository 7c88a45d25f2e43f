"""What holds the house together: imports point down the ladder of rooms and go in no circle, whichever way they are
written, and modules keep their privates to themselves. `tests/support/rooms.py` has the ladder, and reads the
imports."""

from importlib import import_module

from tests.support.draw_rooms import FOLDER, page, picture
from tests.support.rooms import (
    FOLDERS,
    LADDER,
    ROOT,
    all_imports,
    circle,
    folder_graph,
    is_past_a_door,
    is_upward,
    module_graph,
    modules,
    rank,
    room_graph,
    room_of,
)

# Names with an underscore that are no privates of ours, each with the module that may use it and why.
FOREIGN_PRIVATES = {
    (
        "persist.blob.stores.fsspec",
        "_strip_protocol",
    ): "fsspec's way from a URL to a path, for which it has no other name",
    ("persist.blob.stores.fsspec", "_get_kwargs_from_urls"): "the same for the options that a URL holds",
    ("persist.blob.stores.fsspec", "_pipe_file"): "only its signature tells whether that release can create",
    ("persist.services.publish.iceberg", "_supported_endpoints"): "which requests pyiceberg's REST catalog takes",
    ("persist.services.publish.iceberg", "_session"): "its connection, with its credentials",
    ("persist.codecs.types.values", "_replace"): "a public method of named tuples",
    ("persist.codecs.updates.tuples", "_fields"): "what named tuples tell their fields by",
    ("persist.codecs.updates.tuples", "_make"): "a public method of named tuples",
    (
        "persist.services.serve.flight_calls",
        "_rpc_event",
    ): "gRPC ends a blocked call with a status of choice in no other way",
    (
        "persist.connect.spark.data_source.source",
        "_getframe",
    ): "PySpark has no other way to tell whether filters are pushed",
    ("persist.connect.spark.data_source.pruning", "_jdf"): "PySpark has no other way to a plan",
    ("persist.connect.spark.writing.conditions", "_jdf"): "the same",
    ("persist.connect.spark.writing.conditions", "_jvm"): "the same for the mark of a cast that somebody wrote",
    ("persist.connect.spark.reading.store", "_jsparkSession"): "PySpark has no other way to the JVM's file systems",
    ("persist.connect.spark.reading.store", "_jvm"): "the same",
}
# What may reach into a room, and why. There are never more than ten.
PAST_DOORS: dict[tuple[str, str], str] = {}
# What may import a module that is not named where it is imported, and why.
UNNAMED = {
    "persist": "it gives its own name, to be sent to another process",
    "persist": "its callers import the same names for type checkers",
    "persist.engine.read.results.result": "packages that not everybody has, which its callers name",
}


def test_every_module_is_in_a_room_of_the_ladder() -> None:
    rooms = {room for row in LADDER for room in row}
    assert {room_of(module) for module in modules()} == rooms


def test_imports_go_down_the_ladder() -> None:
    """Late ones, those for type checkers, and names of modules in strings, too; nor do rooms side by side import."""
    upward = [str(each) for each in all_imports() if is_upward(each)]
    assert not upward, f"{len(upward)} imports go up:\n" + "\n".join(upward)


def test_imports_go_in_no_circle() -> None:
    for graph in (module_graph(), room_graph(), folder_graph("dataflow")):
        assert not (found := circle(graph)), f"these import each other in a circle: {' -> '.join(found)}"


def test_a_room_is_entered_by_its_door() -> None:
    """Others import what a room exports (for the rooms at the root, its modules), and never from a module inside."""
    past = [
        str(each) for each in all_imports() if is_past_a_door(each) and (each.module, each.target) not in PAST_DOORS
    ]
    assert not past, f"{len(past)} imports go past a door:\n" + "\n".join(past)
    assert len(PAST_DOORS) <= 10


def test_a_door_exports_nothing_that_nobody_uses() -> None:
    """Besides what users import from it, which its `__all__` has."""
    doors = {f"persist.{room}" for row in LADDER for room in row} & modules().keys()
    between_rooms = [each for each in all_imports() if room_of(each.module) != room_of(each.target)]
    used = {(each.target, each.name) for each in between_rooms}
    for_users = {(door, name) for door in doors for name in getattr(import_module(door), "__all__", ())}
    own = [each for door in doors for each in modules()[door].imports if room_of(each.target) == room_of(door)]
    exported = {(each.module, each.name) for each in own if each.name}
    assert not sorted(exported - used - for_users)


def test_what_is_imported_is_named_where_it_is_imported() -> None:
    """Otherwise no reader, and none of these tests, sees what a module needs."""
    hidden = [
        f"{module.path.relative_to(ROOT)}:{line}"
        for module in modules().values()
        for line in module.unnamed
        if module.name not in UNNAMED
    ]
    assert not hidden


def test_only_what_is_of_spark_imports_pyspark() -> None:
    """So following and committing exactly (`persist.compute.tasks`, `persist.compute.tasks`) serve any engine that
    runs tasks."""
    found = [
        f"{module.path.relative_to(ROOT)}:{line} imports {name}"
        for module in modules().values()
        if room_of(module.name) != "spark"
        for line, name in module.foreign
        if name.split(".")[0] in ("pyspark", "py4j")
    ]
    assert not found


def test_a_module_keeps_out_of_the_privates_of_others() -> None:
    found = [
        f"{module.path.relative_to(ROOT)}:{line} uses {name}"
        for module in modules().values()
        for line, name in module.privates
        if name not in module.defined and (module.name, name) not in FOREIGN_PRIVATES
    ]
    assert not found


def test_the_documents_have_the_ladder_of_this_test() -> None:
    rows = [row[0] if len(row) == 1 else "{" + ", ".join(row) + "}" for row in LADDER]
    for name in ("CONTRIBUTING.md", "docs/inside/design.md"):
        assert " < ".join(rows) in " ".join((ROOT / name).read_text(encoding="utf-8").split()), name


def test_the_rooms_of_the_house_stand_in_their_order() -> None:
    """The table of CONTRIBUTING.md has every room once, from the highest to the lowest."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("    cli  ")[2].partition("\n\n")[0]
    names = ["cli", *(name for line in table.splitlines()[1:] for name in line.split("    ")[1].split())]
    rooms = {room for row in LADDER for room in row}
    assert sorted(names) == sorted(rooms)
    assert [*map(rank, names)] == sorted(map(rank, names), reverse=True)


def test_the_drawing_of_imports_is_current() -> None:
    for name, made in (("imports.svg", picture()), ("imports.md", page())):
        assert (FOLDER / name).read_text(encoding="utf-8") == made, f"docs/inside/{name} is old: run scripts/rooms"


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lines = {path: path.read_text().count("\n") for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert [f"{path}: {count}" for path, count in lines.items() if count > 600] == []
