"""What a file system may hold after a power cut, as POSIX lets it: only what was synced is certain.

The model is the pessimistic one of Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of
Crafting Crash-Consistent Applications" (OSDI 2014): nothing is promised beyond fsync.

- A name in a folder stands for what it stood for at the folder's last fsync, or for anything it has stood for since.
  Names are independent of each other, also the two of a rename. So a change may be lost while a later one is kept.
- A file whose name is kept has the content of its last fsync, or any since; or a torn mixture: nothing, a beginning, a
  beginning and then zeros, zeros alone.
- fsync of a file does not make its name durable. A new folder is empty but for what was synced in it.

`Disk` follows the events of a recording, and `states` enumerates what may be left at that point: all of it if there are
few states. Otherwise: the one where all is as old and the one where all is as new as possible, those that differ from
these two in one choice, and some at random.
"""

import itertools
import math
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from persist.blob.protocol import TEMPORARY_PREFIX
from tests.blob.power_cuts.recorder import Data, Entry, Event, Sync

Tree = dict[str, bytes | None]
Name = tuple[int, str]


@dataclass
class Disk:
    """What may be on the disk.

    Attributes:
        names: for each name, what it may stand for, oldest first; what it stands for now is last.
        contents: for each file, its whole contents since its last fsync, oldest first.
    """

    names: dict[Name, list[int | None]] = field(default_factory=dict)
    contents: dict[int, list[bytes]] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Take in what happened next."""
        if isinstance(event, Entry):
            values = self.names.setdefault((event.folder, event.name), [None])
            values.append(event.inode)
        elif isinstance(event, Data):
            self.contents.setdefault(event.inode, [b""]).append(event.content)
        elif isinstance(event, Sync):
            if event.inode in self.contents:
                del self.contents[event.inode][:-1]
            for (folder, _), values in self.names.items():
                if folder == event.inode:
                    del values[:-1]

    def states(self, most: int, chance: random.Random) -> Iterator[Tree]:
        """Yield what a power cut may leave: all of it, or a choice of about `most`; no two are equal."""
        seen = set()
        for names, contents in self._choices(most, chance):
            tree = _tree(names, contents)
            if (key := frozenset(tree.items())) not in seen:
                seen.add(key)
                yield tree

    def newest(self) -> Tree:
        """Return what those who are alive see."""
        newest = {file: contents[-1] for file, contents in self.contents.items()}
        return _tree({name: values[-1] for name, values in self.names.items()}, newest)

    def _choices(self, most: int, chance: random.Random) -> Iterator[tuple[dict[Name, int | None], dict[int, bytes]]]:
        names = {name: _distinct(values) for name, values in self.names.items()}
        certain = {name: values[0] for name, values in names.items() if len(values) == 1}
        # A temporary file must never be taken for anything, so which of them are left matters little.
        temporaries = {n: v for n, v in names.items() if len(v) > 1 and n[1].startswith(TEMPORARY_PREFIX)}
        open_names = {n: v for n, v in names.items() if len(v) > 1 and n not in temporaries}
        visible = {inode for n, v in names.items() if n not in temporaries for inode in v}
        contents = {file: _torn(values) for file, values in self.contents.items()}
        open_files = {file: values for file, values in contents.items() if len(values) > 1 and file in visible}
        whole = {file: values[-1] for file, values in contents.items() if file not in open_files}

        sizes = [len(values) for values in open_names.values()] + [len(values) for values in open_files.values()]
        for picks in _picks(sizes, most, chance):
            of_names, of_files = picks[: len(open_names)], picks[len(open_names) :]
            left = {n: v[-1] if chance.random() < 0.5 else chance.choice(v) for n, v in temporaries.items()}
            kept = {n: v[pick] for (n, v), pick in zip(open_names.items(), of_names, strict=True)}
            held = {f: v[pick] for (f, v), pick in zip(open_files.items(), of_files, strict=True)}
            yield {**certain, **left, **kept}, {**whole, **held}


def materialise(tree: Tree, top: str) -> None:
    """Make the files and folders of a tree in an empty folder."""
    for path, content in sorted(tree.items()):
        target = os.path.join(top, path)
        if content is None:
            os.mkdir(target)
        else:
            with open(target, "wb", buffering=0) as file:
                file.write(content)


def _picks(sizes: list[int], most: int, chance: random.Random) -> Iterable[tuple[int, ...]]:
    if math.prod(sizes) <= most:
        return itertools.product(*map(range, sizes))
    extremes = [tuple(0 for _ in sizes), tuple(size - 1 for size in sizes)]
    neighbours = [
        (*extreme[:i], pick, *extreme[i + 1 :])
        for extreme in extremes
        for i, size in enumerate(sizes)
        for pick in range(size)
    ]
    some = [tuple(chance.randrange(size) for size in sizes) for _ in range(most)]
    return extremes + (neighbours if len(neighbours) <= most else chance.sample(neighbours, most)) + some


def _distinct(values: list[int | None]) -> list[int | None]:
    return list(dict.fromkeys(values))


def _torn(versions: list[bytes]) -> list[bytes]:
    """Return what a file may hold that had these contents since its last fsync."""
    if len(versions) == 1:
        return versions
    torn = []
    for content in versions:
        half = len(content) // 2
        torn += [b"", content[:1], content[:half], content[:half] + bytes(len(content) - half), bytes(len(content))]
    return list(dict.fromkeys([versions[0], *torn, *versions]))


def _tree(names: dict[Name, int | None], contents: dict[int, bytes]) -> Tree:
    children: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), inode in names.items():
        if inode is not None:
            children.setdefault(folder, []).append((name, inode))
    tree: Tree = {}

    def walk(inode: int, path: str) -> None:
        for name, child in children.get(inode, ()):
            tree[path + name] = contents.get(child)
            if child not in contents:
                walk(child, f"{path}{name}/")

    walk(0, "")
    return tree
