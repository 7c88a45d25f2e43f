"""Commands that copy a location elsewhere and verify copies: backup, copy, verify."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from persist.tools.cli.command import OK, PROBLEMS, command
from persist.tools.cli.place import Place, is_folder, merge_storage_options, report_done

if TYPE_CHECKING:  # Loading it takes long.
    from persist.services.backup import Copied

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A folder or URL of another place.")]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--target-option",
        metavar="NAME=VALUE",
        help="For the store of TARGET; may be repeated. By default those of LOCATION, if both stores are alike.",
    ),
]

LeaveOut = Annotated[
    bool, typer.Option("--leave-out-damaged", help="Copy all the rest although parts are damaged or lost; status 1.")
]


@command
def backup(at: Place, target: Target, target_option: TargetOptions = None) -> int:
    """Copy a location to TARGET as it is now; a repeated backup copies only new objects."""
    from persist.services.backup import backup

    options = _read_target_options(at, target, target_option)
    return _report_copy(
        at,
        target,
        backup(at.location, target, storage_options=at.options, target_options=options, settings=at.settings()),
    )


@command
def copy(
    at: Place,
    target: Target,
    leave_out_damaged: LeaveOut = False,
    target_option: TargetOptions = None,
) -> int:
    """Copy a location, or a backup, to an empty place; repeat the command if it is interrupted.

    The copy is verified in full before it accepts writes.
    """
    from persist.services.backup import copy

    options = _read_target_options(at, target, target_option)
    done = copy(
        at.location,
        target,
        storage_options=at.options,
        target_options=options,
        leave_out_damaged=leave_out_damaged,
        settings=at.settings(),
    )
    return _report_copy(at, target, done)


@command
def verify(
    at: Place,
    against: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare what collections hold with this location.")
    ] = None,
    target_option: TargetOptions = None,
) -> int:
    """Read and check all that a location or a backup holds; status 1 if something is wrong."""
    from persist.services.backup import verify

    options = _read_target_options(at, against or "", target_option)
    proof = verify(at.location, against, storage_options=at.options, against_options=options, settings=at.settings())
    if proof.seqno < 0:
        raise at.make_empty_error(at.location)
    report_done(at, {**asdict(proof), "is_whole": proof.is_whole}, str(proof))
    return OK if proof.is_whole else PROBLEMS


def _read_target_options(at: Place, target: str, given: list[str] | None) -> dict[str, Any]:
    """Return the storage options of the other location; by default the first one's."""
    if given:
        return merge_storage_options(target, given)
    if not is_folder(target) and target.partition("://")[0] == at.location.partition("://")[0]:
        return at.options
    return merge_storage_options(target) if is_folder(target) or is_folder(at.location) else {}


def _report_copy(at: Place, target: str, done: "Copied") -> int:
    """Print the result of a copy; return the exit status."""
    report_done(at, {"target": target, **asdict(done)}, f"{target} has {done}")
    return PROBLEMS if done.damaged else OK
