"""A program under construction, as its streams see it: the plan, and what was promised to those who watch it run."""

from typing import Any

from persist.blob import InvalidUsage
from persist.codecs import CollectionSchema
from persist.dataflow.plan.plan import Persist, Plan, Source
from persist.dataflow.plan.taps import Captured, Probed
from persist.engine import CollectionHandle, Engine
from persist.names import check_free_name, check_hold_name


def hold_name(program: str) -> str:
    """Return what the permanent holds of a program are called."""
    return f"dataflow {program}"


class Draft:
    """The plan of a program, and its captures and probes by the number of their node.

    Attributes:
        name: names the program's holds; unique in a location.
        dimensions: of its times.
        plan: what has been built so far.
    """

    def __init__(self, name: str, dimensions: int) -> None:
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 100:
            raise InvalidUsage(f"program name {name!r} is not a text of 1 to 100 printable characters")
        try:
            check_hold_name(hold_name(name))
        except InvalidUsage as error:
            raise InvalidUsage(f"program name {name!r} cannot be part of the name of its holds: {error}") from error
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= 16:
            raise InvalidUsage(f"dimensions={dimensions!r} is not a number of dimensions: give 1 to 16")
        self.name = name
        self.dimensions = dimensions
        self.plan = Plan(name, dimensions)
        self.captures: dict[int, Captured] = {}
        self.probes: dict[int, Probed] = {}
        self.input_schemas: dict[str, CollectionSchema] = {}

    def scope(self, name: str, *, limit: int, inside: Any) -> Any:
        """Return a new scope of iteration; a program defines it, because scopes are made of streams."""
        raise NotImplementedError

    def holders(self, collection: str) -> list[str]:
        """Return what the permanent holds on a source are called: none if the program has no outputs."""
        has_outputs = any(isinstance(node.operator, Persist) for node in self.plan.nodes.values())
        return [hold_name(self.name)] if has_outputs else []

    def makes_holds(self) -> bool:
        """Return whether holds that are not there are made; of views they are made, and released, with the view."""
        return True

    def output(self, collection: str) -> CollectionHandle | None:
        """Return the collection of an output that is there already; None if it is made where it is missing."""
        return None

    def definition(self, collection: str) -> tuple[int, int] | None:
        """Return the number of the definition of an output that is a view, and the time from which on that holds.

        If the output is sealed to just that time, its first commit makes of what it holds what it should hold.
        """
        return None

    def kept(self, number: int) -> str | None:
        """Return what the hidden collection is called that keeps what the operator of a node has given; None if there
        is none."""
        return None

    def every_kept(self, engine: Engine) -> list[str]:
        """Return all hidden collections that there are of the program, of whatever version of it."""
        return []

    def add_probe(self, number: int) -> Probed:
        """Return the probe of a node."""
        return self.probes.setdefault(number, Probed())

    def add_capture(self, number: int) -> Captured:
        """Return the capture of a node."""
        return self.captures.setdefault(number, Captured())

    def check_output(self, collection: str) -> None:
        """Raise InvalidUsage if the program writes or reads a collection already, or may not have that name."""
        check_free_name(collection)
        for node in self.plan.nodes.values():
            match node.operator:
                case Persist(other, _) if other == collection:
                    raise InvalidUsage(f"persist: the program writes collection {collection!r} already")
                case Source(other, _) if other == collection:
                    raise InvalidUsage(
                        f"persist: the program reads collection {collection!r}, so it cannot write it too; for "
                        "recursion "
                        "use iterate()"
                    )

    def check_source(self, collection: str) -> None:
        """Raise InvalidUsage if the program writes a collection that it is about to read."""
        for node in self.plan.nodes.values():
            if isinstance(node.operator, Persist) and node.operator.collection == collection:
                raise InvalidUsage(
                    f"source: the program writes collection {collection!r}, so it cannot read it too; use the "
                    "stream that "
                    "it persists"
                )
