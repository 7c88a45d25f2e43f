"""Which machine a stored declaration means: that of `upsert`, one in the box, or one that the user gives."""

from persist.errors import SchemaMismatch
from persist.log import KeyedForm, MachineForm
from persist.upsert.machine import Machine
from persist.upsert.machines import BOXED
from persist.upsert.replacing import NAME, VERSION, Replacing


def machine_form(machine: Machine | None) -> MachineForm:
    """Return what is stored of a machine; of None, which is that of `upsert`."""
    if machine is None:
        return MachineForm(NAME, VERSION)
    return MachineForm(machine.name, machine.version, dict(machine.options))


def machine_of(form: KeyedForm, given: Machine | None, collection: str) -> Machine | None:
    """Return the machine of a collection; None if it is not known here, which only matters to who resolves.

    Args:
        given: what the user brings.
        collection: its name, for messages.

    Raises:
        SchemaMismatch: that is another one than is stored.
    """
    stored = form.machine
    if given is not None and machine_form(given) != stored:
        raise SchemaMismatch(
            f"the collection {collection!r} is stored with the machine {described(stored)}, and "
            f"{described(machine_form(given))} was given: the same events would amount to something else. Give the "
            "stored one, or use another collection name."
        )
    if (stored.name, stored.version) == (NAME, VERSION):
        return Replacing.of(form)  # By its columns of today: one that was made earlier may know them by older names.
    if given is not None:
        return given
    boxed = BOXED.get((stored.name, stored.version))
    return None if boxed is None else boxed(stored.options)


def described(form: MachineForm) -> str:
    """Return a machine as messages name it."""
    options = "".join(f", {name}={value!r}" for name, value in sorted(form.options.items()))
    return f"{form.name!r} version {form.version}{options}"
