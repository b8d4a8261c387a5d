"""Files written whole or not at all: beside their place first, then renamed."""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocator.errors import OutputError


def check_folder(folder: Path) -> None:
    """Raise `OutputError` where a folder cannot be written, before anything is worked out for it."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder}: is a file; must be a folder")
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    if not os.path.isdir(there):
        raise OutputError(f"{folder}: cannot be written: {there} is a file")
    if not os.access(there, os.W_OK):
        raise OutputError(f"{folder}: cannot be written: {there} is read-only")


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, made if absent; whatever fails, the folder is left as it was."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder}: is a file; must be a folder")
    made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    scratch, done = None, False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".allocator-", dir=folder))
        for name, content in files.items():
            _write(scratch / name, content.encode() if isinstance(content, str) else content)
        _swap(scratch, folder, list(files))
        done = True
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        for path in () if done else made:  # only those made here, and only while empty
            if os.path.isdir(path) and not os.listdir(path):
                path.rmdir()


def write_new_file(path: Path, content: str) -> None:
    """Write a file that must not exist yet, not even as a link to nowhere; its folder is made if absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            try:
                file.write(content)
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise OutputError(f"{path}: exists already; name another file or remove it") from None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}") from None


def finite(value: Any) -> Any:
    """Plain values for JSON: the same with null for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a full disk must show now, not after the rename


def _swap(scratch: Path, folder: Path, names: list[str]) -> None:
    """Rename all files into place; if one cannot be, put back those that were there before."""
    kept = scratch / "before"
    kept.mkdir()
    moved: list[str] = []
    try:
        for name in names:
            if os.path.lexists(folder / name) and not os.path.isdir(folder / name):
                os.link(folder / name, kept / name, follow_symlinks=False)
            os.replace(scratch / name, folder / name)
            moved.append(name)
    except BaseException:
        for name in moved:
            if os.path.lexists(kept / name):
                os.replace(kept / name, folder / name)
            else:
                (folder / name).unlink()
        raise
