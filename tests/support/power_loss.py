"""A disk that forgets what was not synced: `PowerLossFiles`, and the images of it that a power loss may leave.

Below one folder it knows what is really on disk: for each file the content as of its last syncs, page by page, and
for each folder the names as of its last sync. Everything since then is pending. An `Image` is the synced state plus
any part of what is pending: for each page, or each sector of one, the synced content or the newest; of the pending
changes of names any subset (a rename has happened or has not, it is never half done).

The store runs on real files meanwhile, with its threads; nothing is really synced, since only this model matters. The
kernel writes pages back when it likes, so now and then a pending page is taken as synced.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.store.files.file_io import FileMap
from penstock.store.files.lock import StoreLock
from penstock.store.files.mapped_file import PAGE
from support.disks import UnsyncedFiles

SECTOR = 512


class FileNode:
    """A file, whatever its names are."""

    def __init__(self, descriptor: int, synced: bytes) -> None:
        self._descriptor = os.dup(descriptor)
        self.synced = bytearray(synced)

    def newest(self) -> bytes:
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def sync(self, start: int, stop: int) -> None:
        begin = start - start % PAGE
        end = -(-stop // PAGE) * PAGE
        self.synced[begin:end] = self.newest()[begin:end]

    def sync_whole(self) -> None:
        self.synced[:] = self.newest()

    def write_back_some(self, chance: random.Random) -> None:
        for start in range(0, len(self.synced), PAGE):
            if chance.random() < 0.3:
                self.sync(start, start + 1)

    def after_power_loss(self, chance: random.Random) -> bytes:
        newest = self.newest()
        if len(newest) != len(self.synced):  # written, not mapped: the length is pending like the rest
            return chance.choice((bytes(self.synced), newest, newest[: chance.randrange(len(newest) + 1)]))
        step = chance.choice((PAGE, SECTOR))
        keep = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        content = bytearray(self.synced)
        for start in range(0, len(content), step):
            if chance.random() < keep:
                content[start : start + step] = newest[start : start + step]
        return bytes(content)

    def twin(self) -> FileNode:
        """The same file, for another disk."""
        return FileNode(self._descriptor, self.synced)

    def close(self) -> None:
        os.close(self._descriptor)


class LockNode(FileNode):
    """The file `lock`, which must not be opened a second time: closing it would drop the lock."""

    def __init__(self) -> None:
        self.synced = bytearray()

    def newest(self) -> bytes:
        return b"lock"

    def twin(self) -> FileNode:
        return LockNode()


class FolderNode:
    """A folder: its names now, and as they are on disk."""

    def __init__(self) -> None:
        self.names: dict[str, FileNode | FolderNode] = {}
        self.synced: dict[str, FileNode | FolderNode] = {}


Node = FileNode | FolderNode


class Change:
    """One change of names: `removed` goes, `added` comes, both or neither."""

    def __init__(self, removed: tuple[FolderNode, str] | None, added: tuple[FolderNode, str, Node] | None) -> None:
        self.removed = removed
        self.added = added

    def touches(self, folder: FolderNode) -> bool:
        return any(each is not None and each[0] is folder for each in (self.removed, self.added))

    def apply(self, names: Callable[[FolderNode], dict[str, Node]]) -> None:
        if self.removed is not None:
            names(self.removed[0]).pop(self.removed[1], None)
        if self.added is not None:
            names(self.added[0])[self.added[1]] = self.added[2]

    def translated(self, twin: Callable[[Node], Node]) -> Change:
        """The same change, of another disk."""

        def folder(node: FolderNode) -> FolderNode:
            found = twin(node)
            assert isinstance(found, FolderNode)
            return found

        return Change(
            None if self.removed is None else (folder(self.removed[0]), self.removed[1]),
            None if self.added is None else (folder(self.added[0]), self.added[1], twin(self.added[2])),
        )


Image = dict[str, bytes | None]
"""Path below the watched folder -> content; None for a folder."""


class RememberedMap(FileMap):
    """A map whose syncs are noted, and change nothing else."""

    files: PowerLossFiles
    node: FileNode

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.files.sync_map(self, start, len(self) if stop is None else stop)


class PowerLossFiles(UnsyncedFiles):
    """The disk below `base`. `at_sync_point` is called before each sync, on the thread that syncs."""

    def __init__(self, base: Path, seed: str, at_sync_point: Callable[[str], None] = lambda what: None) -> None:
        self._base = base
        self.chance = random.Random(seed)
        self.at_sync_point = at_sync_point
        self._gate = threading.RLock()
        self._root = FolderNode()
        self._pending: list[Change] = []
        self._nodes: list[FileNode] = []
        self._discover(base, self._root)

    def _discover(self, folder: Path, node: FolderNode) -> None:
        """What is there at the beginning is on disk."""
        for path in sorted(folder.iterdir()):
            below: Node
            if path.is_dir():
                below = FolderNode()
                self._discover(path, below)
            else:
                below = self._new_node(path, path.read_bytes())
            node.names[path.name] = node.synced[path.name] = below

    def _new_node(self, path: Path, synced: bytes) -> FileNode:
        descriptor = os.open(path, os.O_RDONLY)
        node = FileNode(descriptor, synced)
        os.close(descriptor)
        self._nodes.append(node)
        return node

    # -- power loss ------------------------------------------------------------------------------------------

    def image(self) -> Image:
        """What the disk may hold if the power goes now."""
        with self._gate:
            happened = self.chance.choice((0.0, 0.5, 1.0))
            names: dict[FolderNode, dict[str, Node]] = {}

            def names_of(folder: FolderNode) -> dict[str, Node]:
                return names.setdefault(folder, dict(folder.synced))

            for change in self._pending:
                if self.chance.random() < happened:
                    change.apply(names_of)
            found: Image = {}
            self._collect(self._root, "", names_of, {}, found)
            return found

    def _collect(
        self,
        folder: FolderNode,
        prefix: str,
        names_of: Callable[[FolderNode], dict[str, Node]],
        contents: dict[FileNode, bytes],
        found: Image,
    ) -> None:
        for name, node in sorted(names_of(folder).items()):
            if isinstance(node, FolderNode):
                found[prefix + name] = None
                self._collect(node, f"{prefix}{name}/", names_of, contents, found)
            else:
                if node not in contents:
                    contents[node] = node.after_power_loss(self.chance)
                found[prefix + name] = contents[node]

    def after_crash(self, base: Path) -> PowerLossFiles:
        """Copies the folder to `base` as the page cache has it: what a killed process leaves.

        Returns the disk there, on which the same is pending. Nothing may change files meanwhile.
        """
        with self._gate:
            shutil.copytree(self._base, base)
            there = PowerLossFiles(base, "")
            there.chance = self.chance
            twins: dict[Node, Node] = {}
            _pair(self._root, there._root, twins)

            def twin(node: Node) -> Node:
                if node not in twins and isinstance(node, FolderNode):  # it has no name any more
                    twins[node] = FolderNode()
                    _pair(node, twins[node], twins)
                elif node not in twins and isinstance(node, FileNode):
                    made = twins[node] = node.twin()
                    there._nodes.append(made)
                return twins[node]

            for folder in [node for node in twins if isinstance(node, FolderNode)]:
                copy = twin(folder)
                assert isinstance(copy, FolderNode)
                copy.synced = {name: twin(node) for name, node in folder.synced.items()}
            there._pending = [change.translated(twin) for change in self._pending]
            return there

    def _sync_point(self, what: str) -> None:
        self.at_sync_point(what)
        if self._nodes and self.chance.random() < 0.1:
            with self._gate:
                self.chance.choice(self._nodes).write_back_some(self.chance)

    # -- the tree --------------------------------------------------------------------------------------------

    def _node(self, path: Path) -> Node:
        node: Node = self._root
        for name in path.relative_to(self._base).parts:
            assert isinstance(node, FolderNode), path
            node = node.names[name]
        return node

    def _folder(self, path: Path) -> FolderNode:
        node = self._node(path)
        assert isinstance(node, FolderNode), path
        return node

    def _change(self, removed: Path | None, added: Path | None, node: Node | None = None) -> None:
        goes = None if removed is None else (self._folder(removed.parent), removed.name)
        if node is None and goes is not None:
            node = goes[0].names[goes[1]]
        comes = None if added is None or node is None else (self._folder(added.parent), added.name, node)
        change = Change(goes, comes)
        change.apply(lambda folder: folder.names)
        self._pending.append(change)

    # -- what the store calls --------------------------------------------------------------------------------

    def sync_map(self, made: RememberedMap, start: int, stop: int) -> None:
        self._sync_point(f"sync {made.path.relative_to(self._base)} {start}-{stop}")
        with self._gate:
            made.node.sync(start, stop)

    def sync_folder(self, folder: Path) -> None:
        if not folder.is_relative_to(self._base):
            return
        self._sync_point(f"sync folder {folder.relative_to(self._base)}")
        with self._gate:
            node = self._folder(folder)
            for change in [each for each in self._pending if each.touches(node)]:
                change.apply(lambda each: each.synced)
                self._pending.remove(change)

    def _name(self, descriptor: int, path: Path) -> None:
        with self._gate:
            super()._name(descriptor, path)
            self._change(None, path, self._new_node(path, bytes(os.fstat(descriptor).st_size)))

    def _create_in_place(self, path: Path, size: int) -> int:
        with self._gate:
            descriptor = super()._create_in_place(path, size)
            self._change(None, path, self._new_node(path, bytes(size)))
            return descriptor

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        plain = super()._map(path, descriptor, size)
        made = RememberedMap(path, plain.memory, descriptor)
        made.files = self
        with self._gate:
            node = self._node(path)
        assert isinstance(node, FileNode), path
        made.node = node
        return made

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        with self._gate:
            is_new = not path.exists()
            super()._write_synced(path, data)
            if is_new:
                self._change(None, path, self._new_node(path, b""))
        self._sync_point(f"write {path.relative_to(self._base)}")
        with self._gate:
            node = self._node(path)
            assert isinstance(node, FileNode), path
            node.sync_whole()

    def _write(self, path: Path, data: bytes | memoryview, *, synced: bool) -> None:
        with self._gate:
            super()._write(path, data, synced=False)
            if not synced:
                self._change(None, path, self._new_node(path, b""))

    def _link(self, source: Path, target: Path) -> None:
        with self._gate:
            super()._link(source, target)
            self._change(None, target, self._node(source))

    def rename(self, source: Path, target: Path) -> None:
        with self._gate:
            super().rename(source, target)
            self._change(source, target)

    def unlink(self, path: Path) -> None:
        with self._gate:
            if path.exists():
                super().unlink(path)
                self._change(path, None)

    def _make_one_folder(self, folder: Path) -> None:
        with self._gate:
            is_new = not folder.exists()
            super()._make_one_folder(folder)
            if is_new:
                self._change(None, folder, FolderNode())

    def remove_folder(self, folder: Path) -> None:
        with self._gate:
            super().remove_folder(folder)
            if not folder.exists():
                self._change(folder, None)

    def lock(self, path: Path) -> StoreLock:
        is_new = not path.exists()
        taken = super().lock(path)
        with self._gate:
            if is_new:
                self._change(None, path, LockNode())
        return taken

    def close(self) -> None:
        for node in self._nodes:
            node.close()


def _pair(folder: Node, copy: Node, twins: dict[Node, Node]) -> None:
    """Notes for each node of a tree the node of the same name in its copy, which gets what was synced."""
    twins[folder] = copy
    if isinstance(folder, FolderNode) and isinstance(copy, FolderNode):
        for name, node in folder.names.items():
            if name in copy.names:
                _pair(node, copy.names[name], twins)
    elif isinstance(folder, FileNode) and isinstance(copy, FileNode):
        copy.synced[:] = folder.synced


def write_image(image: Image, folder: Path) -> None:
    """Puts an image into an empty folder."""
    folder.mkdir()
    for name, content in image.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
