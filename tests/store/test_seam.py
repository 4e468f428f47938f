"""All I/O of the store goes through one seam: no other module touches the disk by itself.

Looks at the sources, so that a short cut is noticed before it makes a fault impossible to inject.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import penstock.store

FOLDER = Path(penstock.store.__file__).parent
SEAM = ("files/file_io.py", "files/lock.py")
"""`Files` with the maps that it hands out, and the lock file."""
OVERLAY = "files/in_memory_copy_on_write_files.py"
"""The seam over memory: it reads the disk itself, and writes nothing."""

OS_CALLS = {
    "open", "write", "pwrite", "writev", "pwritev", "truncate", "ftruncate", "fsync", "fdatasync", "sync",
    "posix_fallocate", "rename", "renames", "replace", "unlink", "remove", "link", "symlink", "mkdir", "makedirs",
    "rmdir", "removedirs", "mkfifo", "mknod", "chmod", "utime", "sendfile", "copy_file_range", "listdir", "scandir",
    "stat", "walk",
}  # fmt: skip
PATH_METHODS = {
    "open", "write_bytes", "write_text", "read_bytes", "read_text", "touch", "mkdir", "rmdir", "unlink", "rename",
    "symlink_to", "hardlink_to", "chmod", "iterdir", "glob", "rglob", "stat", "exists", "is_file", "is_dir",
}  # fmt: skip
SEAM_METHODS = {"exists", "read_bytes", "unlink", "rename"}
"""Names that the seam's own methods share with those of Path: fine when called on the seam."""
MODULES = {"shutil", "tempfile", "fcntl", "io"}

ALLOWED = {
    # Asked before there is a seam: is there a folder at all?
    ("message_store.py", "root.is_dir"),
    ("message_store.py", "root.exists"),
    # The limits of a container, which are no files of a disk.
    ("get.py", "?.read_text"),
    # Asked before there is a store: which folders do the paths and globs of a command name?
    ("readonly/store_folder.py", "?.is_dir"),
    ("readonly/store_folder.py", "match.is_dir"),
    ("readonly/store_folder.py", "root.glob"),
    ("readonly/store_folder.py", "?.exists"),
    ("readonly/store_folder.py", "folder.is_dir"),
    ("readonly/store_folder.py", "folder.iterdir"),
    ("readonly/store_folder.py", "path.is_dir"),
    # Opens a store, which then goes through the seam.
    ("readonly/store_folder.py", "MessageStore.open"),
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def touches_the_disk(call: ast.Call) -> bool:
    name = dotted(call.func)
    owner, _, last = name.rpartition(".")
    if name in ("open", "io.open"):
        return True
    if owner == "os":
        return last in OS_CALLS
    if owner == "mmap" and last == "mmap":
        return not is_anonymous(call)
    if owner.split(".")[0] in MODULES:
        return True
    if last in SEAM_METHODS and owner in ("self._io", "self._files", "self.files", "files", "self._maps.io"):
        return False
    return bool(owner) and last in PATH_METHODS


def is_anonymous(call: ast.Call) -> bool:
    """mmap.mmap(-1, ...): memory, not a file."""
    return bool(call.args) and isinstance(call.args[0], ast.UnaryOp) and ast.unparse(call.args[0]) == "-1"


def disk_calls(source: str) -> list[tuple[int, str]]:
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [(call.lineno, dotted(call.func)) for call in calls if touches_the_disk(call)]


MODULE_NAMES = sorted(
    name
    for room in (".", "files", "readonly", "replication")
    for name in (path.relative_to(FOLDER).as_posix() for path in (FOLDER / room).glob("*.py"))
    if name not in (*SEAM, OVERLAY)
)


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_a_module_of_the_store_leaves_the_disk_to_the_seam(name: str) -> None:
    found = disk_calls((FOLDER / name).read_text())
    assert [call for call in found if (name, call[1]) not in ALLOWED] == []


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_a_module_of_the_store_does_not_import_what_works_on_files(name: str) -> None:
    tree = ast.parse((FOLDER / name).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported & MODULES == set()


def test_every_exception_is_still_needed() -> None:
    found = {(name, call) for name in MODULE_NAMES for _, call in disk_calls((FOLDER / name).read_text())}
    assert found == ALLOWED


def test_the_seam_itself_is_where_the_calls_are() -> None:
    """If this finds nothing, neither would the tests above."""
    names = {name for part in SEAM for _, name in disk_calls((FOLDER / part).read_text())}
    assert {"os.open", "os.posix_fallocate", "os.fdatasync", "os.fsync", "mmap.mmap", "path.unlink"} <= names


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "os.rename(a, b)",
        "path.write_bytes(b'')",
        "self.folder.mkdir()",
        "self.path.unlink()",
        "mmap.mmap(descriptor, 10)",
        "os.fsync(3)",
        "shutil.rmtree(path)",
        "path.with_name('x').touch()",
    ],
)
def test_a_short_cut_would_be_noticed(line: str) -> None:
    assert len(disk_calls(line)) == 1


@pytest.mark.parametrize(
    "line", ["self._io.unlink(path)", "mmap.mmap(-1, 10)", "self._files.exists(path)", "x.append(1)"]
)
def test_the_seam_may_be_called(line: str) -> None:
    assert disk_calls(line) == []
