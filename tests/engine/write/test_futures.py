"""What a future says of its commit, and what becomes of an error that nobody looks at."""

import asyncio
import threading
from concurrent.futures import TimeoutError as Late

import pytest

from persist.blob.errors import InvalidUsage
from persist.engine.write import commit_future as future
from persist.engine.write.commit_future import CommitFuture, UnobservedErrors


def made(ledger: UnobservedErrors | None = None) -> tuple[CommitFuture, list[int]]:
    """Return a future, and a list that grows when somebody begins to wait for it."""
    waits: list[int] = []
    return CommitFuture(ledger or UnobservedErrors("memory://x"), lambda: waits.append(1)), waits


def test_a_future_that_succeeded_says_where_and_when_and_waits_for_nothing() -> None:
    one, waits = made()
    assert (one.durable_at, one.done(), one.cancel()) == (None, False, False)
    one.succeed(7, {"a": 3, "b": 4})
    assert (one.result(), one.exception(), one.durable_at, one.time, dict(one.times)) == (
        7,
        None,
        7,
        3,
        {"a": 3, "b": 4},
    )
    assert one.get_commit() == (7, {"a": 3, "b": 4})
    named, _ = made()
    named.succeed(8)
    assert (named.time, named.durable_at) == (None, 8)
    assert waits == []


def test_whoever_waits_says_so_first_and_not_for_longer_than_asked() -> None:
    one, waits = made()
    for wait in (lambda: one.result(0), lambda: one.exception(0)):
        with pytest.raises(Late):
            wait()
    assert waits == [1, 1]
    threading.Timer(0.02, lambda: one.succeed(3)).start()
    assert one.exception(60) is None
    assert one.result() == 3


def test_an_error_is_on_the_ledger_until_somebody_looks() -> None:
    ledger = UnobservedErrors("memory://x")
    futures = [made(ledger)[0] for _ in range(3)]
    for number, each in enumerate(futures):
        each.fail(ValueError(str(number)))
    assert str(futures[0].exception()) == "0"
    with pytest.raises(ValueError, match="1"):
        futures[1].result()
    assert futures[1].durable_at is None
    assert [str(error) for error in ledger.take()] == ["2"]
    assert ledger.take() == []
    ledger.raise_all()


def test_what_nobody_looked_at_is_raised_alone_or_as_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future, "ERRORS_KEPT_MAX", 2)
    ledger, shared = UnobservedErrors("memory://x"), ValueError("shared")
    for number in (1, 2):
        ledger.add(number, shared)
    with pytest.raises(ValueError, match="shared") as alone:
        ledger.raise_all()
    assert alone.value is shared
    ledger.add(1, shared)
    ledger.add(2, KeyError("other"))
    ledger.add(3, KeyError("not kept"))
    ledger.add(4, KeyError("not kept"))
    assert [*ledger.kept] == [1, 2, 3, 4]
    with pytest.raises(BaseExceptionGroup, match="4 writes failed and no caller read their errors") as group:
        ledger.raise_all()
    first, second, third = group.value.exceptions
    assert (first, str(second)) == (shared, "'other'")
    assert isinstance(third, InvalidUsage)
    assert str(third) == "2 more writes failed, and only 2 errors are kept"
    ledger.raise_all()


def test_an_error_keeps_nothing_alive_that_was_committed_with_it() -> None:
    def failed(text: str, cause: BaseException | None = None, context: BaseException | None = None) -> Exception:
        try:
            if context is not None:
                try:
                    raise context
                except type(context):
                    raise KeyError(text) from cause
            raise ValueError(text) from cause
        except (KeyError, ValueError) as error:
            return error

    deep = failed("deep")
    top = failed("top", failed("cause", deep), failed("context"))
    deep.__context__ = top  # A circle.
    one, _ = made()
    one.fail(top)
    assert one.exception() is top
    assert isinstance(top.__cause__, ValueError)
    assert isinstance(top.__context__, ValueError)
    errors = [top, top.__cause__, top.__context__, deep]
    assert [error.__traceback__ for error in errors] == [None] * 4


def test_what_ends_a_thread_in_a_callback_ends_nothing_that_was_committed_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    for error in (None, ValueError("x")):
        one, _ = made()
        one.add_done_callback(leave)
        caplog.clear()
        one.succeed(5) if error is None else one.fail(error)
        assert "a future's callback raised SystemExit(3), which ends nothing here" in caplog.text
        assert one.done()
    one, _ = made()
    one.succeed(1)
    with pytest.raises(Exception, match="FINISHED"):
        one.succeed(2)


def test_an_awaited_future_wakes_its_task_also_one_that_was_cancelled_before() -> None:
    one, waits = made()
    other, _ = made()

    async def main() -> int:
        waiting = asyncio.ensure_future(waiting_for(other))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        other.fail(ValueError("nobody hears"))
        asyncio.get_running_loop().call_soon(one.succeed, 9)
        return await one

    async def waiting_for(each: CommitFuture) -> int:
        return await each

    assert asyncio.run(main()) == 9
    assert waits == [1]
    assert str(other.exception()) == "nobody hears"
