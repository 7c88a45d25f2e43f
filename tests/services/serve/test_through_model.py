"""The state machine of two clients, both of which commit through a server that dies and whose answers get lost."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import persist
from tests.proofs.test_state_machine import CLIENTS, TwoClients, small_policy
from tests.services.serve.line import Line
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Stepped
from tests.support.tiers import examples

QUIET = persist.Settings(background=False, tuning=small_policy())


class ThroughAServer(TwoClients):
    """As alone, every call does what the model does."""

    hub: persist.Client | None = None

    def opened(self) -> persist.Client:
        if self.hub is None:
            self.serve()
            self.lines: list[Line] = []
        line = Line(self.served.url)
        self.lines.append(line)
        return persist.open(self.blob, clock=ImpatientClock(), settings=self.settings(), commit_through=line.url)

    def serve(self) -> None:
        self.store = Stepped(self.blob)
        self.hub = persist.open(self.store, settings=QUIET, clock=ImpatientClock())
        self.served = self.hub.serve("grpc://127.0.0.1:0", commits=True)

    def teardown(self) -> None:
        super().teardown()
        if self.hub is not None:
            self.hub.close()
            for line in self.lines:
                line.close()

    @rule()
    def restart_the_server(self) -> None:
        assert self.hub is not None
        self.hub.close()
        self.serve()
        for line in self.lines:
            line.interrupt()
            line.lead_to(self.served.url)

    @precondition(lambda self: self.store.is_done)
    @rule(client=CLIENTS, is_after=st.booleans())
    def lose_an_answer(self, client: int, is_after: bool) -> None:
        """Break the line of one of the last clients before, or after, the server makes its next record."""
        at = self.store.after if is_after else self.store.before
        at("create", "log/", self.lines[-1 - client].interrupt)

    @rule(client=CLIENTS)
    def wait(self, client: int) -> None:
        """So long that a client asks the server again."""
        self.clients[client].engine.clock.sleep(60.0)


TestThroughAServer = ThroughAServer.TestCase
TestThroughAServer.settings = settings(
    max_examples=examples(30), stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)
