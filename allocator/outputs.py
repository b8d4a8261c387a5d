"""Files written whole or not at all: beside their place first, then renamed."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from allocator.errors import OutputError


def write_folder(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder (made if absent); on failure the folder is as it was, and the error says why."""
    scratch = None
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"--out {folder}: is a file; must be a folder")
        made = [p for p in (folder, *folder.parents) if not p.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".allocator-", dir=folder))
            for name, content in files.items():
                data = content.encode() if isinstance(content, str) else content
                with (scratch / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # a full disk must show now, not after the rename
            for name in files:
                os.replace(scratch / name, folder / name)
        except OSError:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            for path in made:  # only those made here, and only while empty
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            raise
        shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"--out {folder}: cannot be written: {error.strerror or error}") from None


def write_new_file(path: Path, content: str) -> None:
    """Write a file that must not exist yet."""
    if path.exists():
        raise OutputError(f"{path}: exists already; name another file or remove it")
    write_folder(path.parent, {path.name: content})
