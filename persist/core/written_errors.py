"""The written form of all errors, for servers and their clients; see `persist.blob.written_errors`."""

from persist.blob.errors import PersistError
from persist.blob.written_errors import Tag, WrittenErrors
from persist.core import errors
from persist.core.antichain import Antichain
from persist.core.errors import Superseded


def _public() -> list[type[PersistError]]:
    """Return the public error classes."""
    named = (getattr(errors, name) for name in errors.__all__)
    return [kind for kind in named if isinstance(kind, type) and issubclass(kind, PersistError)]


ERRORS = WrittenErrors(
    [*_public(), Superseded],
    otherwise=PersistError,
    tags=(Tag("frontier", Antichain, lambda frontier: frontier.elements, Antichain),),
)
