"""The help of the program itself: its commands in sections, by what somebody wants to do.

A list of forty commands in one piece is read from its top, so what people do first stands there. A command that no
section names would not be found by a newcomer: a test holds the sections against all commands.
"""

from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "Write": ("create", "write", "upsert", "overwrite", "delete", "seal"),
    "Look": ("ls", "show", "read", "changes", "diff", "tail", "sql", "log", "ui"),
    "Derive": ("view", "refresh", "apply"),
    "Name, and keep readable": ("tag", "tags", "untag", "hold", "holds", "release"),
    "Change": ("evolve", "rename", "destroy"),
    "Exchange": ("export", "import", "serve"),
    "Maintain": ("compact", "gc", "fsck", "bench"),
}


class SectionedGroup(TyperGroup):
    """The program: its commands are listed in the order of `SECTIONS`, in its help and where a shell completes."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the sections."""
        named = [name for names in SECTIONS.values() for name in names]
        return sorted(super().list_commands(ctx), key=lambda name: named.index(name) if name in named else len(named))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list for each section, all of them as wide as the widest."""
        width = max(map(len, self.commands))
        whole = 10_000  # Sentences are wrapped, and not cut.
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:{width}}", self.commands[name].get_short_help_str(whole)) for name in names]
                )
