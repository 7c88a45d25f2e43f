"""Saying that there is something new, and serving reads over Arrow Flight: always a hint, never a truth (rule 20).

Promises: without a server, behind it, or when it lies, answers are the same and only later; a writer never waits for
one; a client that does not read what it asked for keeps neither history nor others from anything.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names
from persist.notify.messages import Notify, check_token, host_of, is_loopback, listening
from persist.notify.rights import RIGHTS, Tokens

if TYPE_CHECKING:
    from persist.notify.asking import Listener, commit_through
    from persist.notify.flight_calls import BlobCalls
    from persist.notify.server import Server


__getattr__ = late_names(
    __name__,
    {"asking": ["Listener", "commit_through"], "flight_calls": ["BlobCalls"], "server": ["Server"]},
)
