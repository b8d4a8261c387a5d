"""Files appear whole or not at all, and what was there before a failure is there after it."""

import os
import sys
from pathlib import Path

import pytest

from allocator.errors import OutputError
from allocator.outputs import write_folder, write_new_file

FILES = {"a.csv": "x,y\n1,2\n", "b.json": b"{}"}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones included, and every folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"folder"
        for p in sorted(folder.rglob("*"))
    }  # fmt: skip


@pytest.fixture
def not_root():
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root writes anywhere")


def test_files_are_written_with_their_content(tmp_path: Path):
    write_folder(tmp_path, FILES)
    assert tree(tmp_path) == {"a.csv": b"x,y\n1,2\n", "b.json": b"{}"}


def test_text_is_utf8_with_bare_newlines(tmp_path: Path):
    write_folder(tmp_path, {"t.csv": "é\n☃\n"})
    assert (tmp_path / "t.csv").read_bytes() == "é\n☃\n".encode()


def test_folders_are_made(tmp_path: Path):
    write_folder(tmp_path / "a/b/c", FILES)
    assert set(tree(tmp_path / "a/b/c")) == set(FILES)


def test_a_second_run_replaces_and_keeps_strangers(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("keep")
    write_folder(tmp_path, FILES)
    write_folder(tmp_path, {"a.csv": "new"})
    assert tree(tmp_path) == {"mine.txt": b"keep", "a.csv": b"new", "b.json": b"{}"}


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputError, match="is a file; must be a folder"):
        write_folder(tmp_path / "out", FILES)
    assert tree(tmp_path) == {"out": b"precious"}


def test_below_a_file_there_is_no_folder(tmp_path: Path):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputError, match="cannot be written"):
        write_folder(tmp_path / "out/below", FILES)
    assert tree(tmp_path) == {"out": b"precious"}


def test_an_error_is_one_line_with_the_path(tmp_path: Path):
    (tmp_path / "out").write_text("precious")
    with pytest.raises(OutputError) as caught:
        write_folder(tmp_path / "out/below", FILES)
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path / "out/below") in str(caught.value)


@pytest.mark.parametrize("at", ["first", "last"])
def test_a_failed_rename_leaves_no_half(at: str, tmp_path: Path, monkeypatch):
    """Nothing half-written: where one file cannot be put in place, none may be new beside others that are old."""
    out = tmp_path / "out"
    write_folder(out, {"a.csv": "old", "b.json": "old"})
    before = tree(tmp_path)
    name = "a.csv" if at == "first" else "b.json"
    rename = os.replace

    def fail(source, target):
        if Path(target) == out / name and Path(source).read_bytes() != b"old":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_folder(out, FILES)
    assert tree(tmp_path) == before


def test_a_name_taken_by_a_folder(tmp_path: Path):
    (tmp_path / "out/b.json").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(OutputError):
        write_folder(tmp_path / "out", FILES)
    assert tree(tmp_path) == before


def test_folders_made_for_nothing_are_removed(tmp_path: Path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_folder(tmp_path / "a/b", FILES)
    assert tree(tmp_path) == {}


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", FILES)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_full_disk(smallfs: Path):
    (smallfs / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="No space left"):
        write_folder(smallfs / "out", {"small.csv": "1\n", "large.csv": "x" * 200_000})
    assert tree(smallfs) == {"mine.txt": b"keep"}


def test_a_full_disk_keeps_the_earlier_files(smallfs: Path):
    write_folder(smallfs / "out", FILES)
    before = tree(smallfs)
    with pytest.raises(OutputError, match="No space left"):
        write_folder(smallfs / "out", {"a.csv": "new", "b.json": "x" * 200_000})
    assert tree(smallfs) == before


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files from anybody")
def test_a_place_that_takes_no_files():
    with pytest.raises(OutputError, match="cannot be written"):
        write_folder(Path("/proc/allocator"), FILES)


@pytest.mark.usefixtures("not_root")
def test_a_read_only_folder(tmp_path: Path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            write_folder(tmp_path / "out", FILES)
        assert tree(tmp_path) == {}
    finally:
        tmp_path.chmod(0o700)


def test_a_new_file_must_be_new(tmp_path: Path):
    path = tmp_path / "a/scenario.toml"
    write_new_file(path, "title = 'x'\n")
    assert path.read_text() == "title = 'x'\n"
    with pytest.raises(OutputError, match="exists already"):
        write_new_file(path, "other")
    assert tree(tmp_path) == {"a": b"folder", "a/scenario.toml": b"title = 'x'\n"}


def test_a_dangling_link_is_not_written_over(tmp_path: Path):
    (tmp_path / "link.toml").symlink_to(tmp_path / "gone/file.toml")
    with pytest.raises(OutputError):
        write_new_file(tmp_path / "link.toml", "x")
    assert (tmp_path / "link.toml").is_symlink()


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + "/b.toml", "x/" * 3000 + "b"])
@pytest.mark.parametrize("write", [write_new_file, lambda path, _: write_folder(path, FILES)], ids=["file", "folder"])
def test_a_name_that_no_file_can_bear(name: str, write, tmp_path: Path):
    with pytest.raises(OutputError, match="too long"):
        write(tmp_path / name, "x")
    assert tree(tmp_path) == {}


def test_an_error_of_a_new_file_does_not_speak_of_an_option(tmp_path: Path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputError) as caught:
        write_new_file(tmp_path / "file/new.toml", "x")
    assert "--out" not in str(caught.value)
