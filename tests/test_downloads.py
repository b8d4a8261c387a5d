"""Third-party data from a mirror, the cache or a server that misbehaves in every way a server can."""

import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from allocator import catalog, downloads
from allocator.downloads import fetch, pull
from allocator.errors import AllocatorError, CatalogError, DataError

BODY = b"n_active,d_tokens,loss\n" + b"1e9,2e10,2.5\n" * 20_000  # more than a socket's buffers take at once
SECOND = b"k\n1\n"
SET, FILE, OTHER = "runs_of_somebody", "runs.csv", "second.csv"
PATCHED = """
import json, signal, sys
from allocator import catalog, cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
sets = json.loads(sys.argv[1])
catalog.registry = lambda: sets
cli.main(sys.argv[2:])
"""


class Server(ThreadingHTTPServer):
    """A server on this machine; `answer` does what the test wants, `asked` holds the paths of all requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.answer: Callable[[Handler], None] = whole
        self.halfway, self.release = threading.Event(), threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the server's answer."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.answer(self)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def send(self, body: bytes, *, length: int | None = None, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


def whole(handler: Handler) -> None:
    handler.send(SECOND if handler.path.endswith(OTHER) else BODY)


def changed(handler: Handler) -> None:
    handler.send(BODY.replace(b"2.5", b"2.6"))


def short_of_what_it_promised(handler: Handler) -> None:
    handler.send(BODY[:5000], length=len(BODY))


def short_and_content(handler: Handler) -> None:
    handler.send(BODY[:5000])


def longer(handler: Handler) -> None:
    handler.send(BODY + b"1")


def an_error_page(handler: Handler) -> None:
    handler.send(b"<html>please log in</html>")


def empty(handler: Handler) -> None:
    handler.send(b"")


def reset_midway(handler: Handler) -> None:
    handler.send(BODY[: len(BODY) // 2], length=len(BODY))
    handler.wfile.flush()
    # Close with a reset, as a cable pulled or a firewall would.
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def stop_midway(handler: Handler) -> None:
    handler.send(BODY[: len(BODY) // 2], length=len(BODY))
    handler.wfile.flush()
    handler.server.halfway.set()
    handler.server.release.wait(60)


def not_found(handler: Handler) -> None:
    handler.send(b"404", status=404)


def unavailable(handler: Handler) -> None:
    handler.send(b"", status=503)


def no_http(handler: Handler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def sets(server: Server) -> dict[str, Any]:
    """A registry with one set of two files on the test's server."""
    files = {
        name: {
            "url": f"{server.address}/{name}",
            "sha256": hashlib.sha256(body).hexdigest(),
            "bytes": len(body),
            "columns": {"k": {"unit": "1", "description": "A column"}},
        }
        for name, body in ((FILE, BODY), (OTHER, SECOND))
    }
    about = dict.fromkeys(("title", "who", "repository", "commit", "citation", "notes"), "somebody's")
    return {SET: about | {"licence": "none", "aliases": ["runs-of-somebody"], "files": files}}


@pytest.fixture
def cache(sets: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, no mirror, and the registry of the test's server in place of the shipped one."""
    monkeypatch.setattr(catalog, "registry", lambda: sets)
    monkeypatch.delenv(downloads.MIRROR, raising=False)
    monkeypatch.setenv(downloads.CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def mirrored(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A mirror that has the first file only."""
    folder = tmp_path / "mirror"
    (folder / SET).mkdir(parents=True)
    (folder / SET / FILE).write_bytes(BODY)
    monkeypatch.setenv(downloads.MIRROR, str(folder))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, hidden ones included, and every folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"folder" for p in folder.rglob("*")
    }  # fmt: skip


def refused(kind: type[AllocatorError] = DataError, **options: Any) -> str:
    """The one line with which the set is refused."""
    with pytest.raises(kind) as error:
        fetch(SET, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def start(sets: dict[str, Any], *arguments: str | Path) -> subprocess.Popen[str]:
    """The command in a process of its own, with the test's registry."""
    command = [sys.executable, "-c", PATCHED, json.dumps(sets), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# --- from the server, then from the cache ---


def test_a_download_is_whole_and_comes_once(cache: Path, server: Server, capfd: pytest.CaptureFixture[str]):
    for origin in ("download", "cache"):
        files = pull(SET).files
        assert [file.origin for file in files] == [origin, origin]
        assert [file.path for file in files] == [cache / SET / FILE, cache / SET / OTHER]
    assert server.asked == [f"/{FILE}", f"/{OTHER}"]
    assert tree(cache) == {SET: b"folder", f"{SET}/{FILE}": BODY, f"{SET}/{OTHER}": SECOND}
    assert capfd.readouterr() == ("", "")


def test_fetch_gives_paths_by_file(cache: Path):
    assert fetch(SET) == {FILE: cache / SET / FILE, OTHER: cache / SET / OTHER}


def test_only_some_files(cache: Path, server: Server):
    assert list(fetch(SET, only=[OTHER])) == [OTHER]
    assert server.asked == [f"/{OTHER}"]
    assert fetch(SET, only=[]) == {}
    assert refused(only=["none.csv"]) == f"{SET}: 'none.csv' is none of its files, which are {FILE}, {OTHER}"


def test_a_damaged_cache_is_never_used(cache: Path, server: Server):
    fetch(SET)
    (cache / SET / FILE).write_bytes(BODY.replace(b"2.5", b"9.9"))  # same size
    (cache / SET / OTHER).write_bytes(b"")
    assert {file.origin for file in pull(SET).files} == {"download"}
    assert (cache / SET / FILE).read_bytes() == BODY
    assert (cache / SET / OTHER).read_bytes() == SECOND
    (cache / SET / FILE).write_bytes(b"damaged again")
    server.answer = not_found
    assert "404" in refused()


def test_the_default_cache_is_the_users(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(downloads.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    paths = fetch(SET)
    assert all(path.is_relative_to(tmp_path) and "allocator" in path.parts for path in paths.values())
    assert not cache.exists()


@pytest.mark.parametrize("given", ["mirror", "cache"])
def test_what_is_there_needs_no_http_library(given: str, mirrored: Path, sets: dict[str, Any], cache: Path):
    (mirrored / SET / OTHER).write_bytes(SECOND)
    environment = os.environ | {downloads.CACHE: str(mirrored if given == "cache" else cache)}
    if given == "cache":
        del environment[downloads.MIRROR]
    code = (
        f"import sys; from allocator import catalog, downloads; catalog.registry = lambda: {sets!r};"
        f"print(*(f.origin for f in downloads.pull({SET!r}).files)); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    origins, modules = done.stdout.splitlines()
    assert origins == f"{given} {given}"
    assert not {"requests", "urllib3", "pooch", "numpy", "jax"} & set(modules.split())


# --- what a server can do wrong ---


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (changed, "has sha256 "),
        (short_of_what_it_promised, "the connection broke off"),
        (short_and_content, f"has 5,000 bytes, must have {len(BODY):,}"),
        (longer, f"has {len(BODY) + 1:,} bytes, must have {len(BODY):,}"),
        (an_error_page, "has 26 bytes, must have"),
        (empty, "has 0 bytes, must have"),
        (reset_midway, "the connection broke off"),
        (not_found, "the server answered 404 Not Found"),
        (unavailable, "the server answered 503 Service Unavailable"),
        (no_http, "no connection"),
    ],
)
def test_a_bad_answer_is_refused_and_leaves_nothing(
    answer: Callable[[Handler], None], words: str, cache: Path, server: Server, capfd: pytest.CaptureFixture[str]
):
    server.answer = answer
    line = refused()
    assert line.startswith(f"{SET}: {FILE}: the download from {server.address}/{FILE} ")
    assert words in line
    assert line.endswith(f"try again later, or name a folder that holds {SET}/{FILE} in {downloads.MIRROR}")
    assert not cache.exists()
    assert capfd.readouterr() == ("", "")
    server.answer = whole
    assert fetch(SET)[FILE].read_bytes() == BODY


def test_a_bad_second_file_leaves_the_first(cache: Path, server: Server):
    server.answer = lambda handler: (not_found if handler.path.endswith(OTHER) else whole)(handler)
    assert refused().startswith(f"{SET}: {OTHER}: ")
    assert tree(cache) == {SET: b"folder", f"{SET}/{FILE}": BODY}
    server.answer = whole
    assert [file.origin for file in pull(SET).files] == ["cache", "download"]


def test_no_server(cache: Path, sets: dict[str, Any]):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        sets[SET]["files"][FILE]["url"] = f"http://127.0.0.1:{taken.getsockname()[1]}/{FILE}"
        assert "failed: no connection; try again later" in refused()
    assert not cache.exists()


def test_a_proxy_that_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert "failed: the proxy does not answer" in refused()


def test_a_redirect_is_followed_and_checked_all_the_same(cache: Path, server: Server):
    def elsewhere(handler: Handler) -> None:
        if handler.path.startswith("/moved"):
            changed(handler)
        else:
            handler.send_response(302)
            handler.send_header("Location", f"{server.address}/moved")
            handler.end_headers()

    server.answer = elsewhere
    assert "has sha256 " in refused()
    assert not cache.exists()


def test_a_body_without_end_is_cut_off(cache: Path, server: Server):
    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:  # until the client has had enough
            handler.wfile.write(BODY)

    server.answer = endless
    assert f", must have {len(BODY):,}: it is not what was pinned" in refused()
    assert not cache.exists()


# --- interruptions ---


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited a minute in vain"
        time.sleep(0.01)


def half_done(cache: Path) -> bool:
    """Whether a part of the file has reached the disk."""
    return any(path.is_file() and path.stat().st_size for path in cache.rglob("*"))


def test_ctrl_c_midway_leaves_nothing(cache: Path, server: Server, sets: dict[str, Any]):
    server.answer = stop_midway
    command = start(sets, "data", "pull", SET)
    assert server.halfway.wait(60)
    wait_for(lambda: half_done(cache))
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (130, "")
    assert err in ("", "error: interrupted\n")
    assert not cache.exists()


def test_what_a_killed_process_leaves_is_never_used(cache: Path, server: Server, sets: dict[str, Any]):
    server.answer = stop_midway
    command = start(sets, "data", "pull", SET)
    assert server.halfway.wait(60)
    wait_for(lambda: half_done(cache))
    command.kill()
    command.communicate(timeout=60)
    assert not (cache / SET / FILE).exists()
    server.answer = whole
    assert [file.origin for file in pull(SET).files] == ["download", "download"]
    assert (cache / SET / FILE).read_bytes() == BODY


def test_two_at_once_both_get_the_file(cache: Path, sets: dict[str, Any]):
    commands = [start(sets, "data", "pull", SET, "--json") for _ in range(2)]
    for command in commands:
        out, err = command.communicate(timeout=120)
        assert (command.returncode, err) == (0, "")
        assert len(json.loads(out)["rows"]) == 2
    assert tree(cache) == {SET: b"folder", f"{SET}/{FILE}": BODY, f"{SET}/{OTHER}": SECOND}


# --- the mirror ---


def test_a_mirror_comes_first_and_what_it_lacks_is_downloaded(mirrored: Path, cache: Path, server: Server):
    first, second = pull(SET).files
    assert (first.path, first.origin) == (mirrored / SET / FILE, "mirror")
    assert (second.path, second.origin) == (cache / SET / OTHER, "download")
    assert server.asked == [f"/{OTHER}"]


@pytest.mark.parametrize("wrong", [BODY.replace(b"2.5", b"2.6"), BODY[:-1], b""])
def test_a_wrong_mirror_is_refused_not_replaced(wrong: bytes, mirrored: Path, cache: Path, server: Server):
    (mirrored / SET / FILE).write_bytes(wrong)
    line = refused()
    assert line.startswith(f"{SET}: {FILE}: {mirrored / SET / FILE} in the mirror has ")
    assert line.endswith("replace it, or unset ALLOCATOR_DATA_MIRROR")
    assert (mirrored / SET / FILE).read_bytes() == wrong
    assert server.asked == []
    assert not cache.exists()


def test_a_link_to_nowhere_in_the_mirror_is_refused(mirrored: Path):
    (mirrored / SET / OTHER).symlink_to(mirrored / "gone")
    assert "in the mirror cannot be read: No such file or directory" in refused()


def test_a_mirror_that_is_no_folder_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, server: Server):
    monkeypatch.setenv(downloads.MIRROR, str(cache / "typo"))
    assert refused() == f"ALLOCATOR_DATA_MIRROR: {cache / 'typo'} is no folder"
    assert server.asked == []


def test_an_empty_variable_is_no_mirror(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(downloads.MIRROR, "")
    assert pull(SET).files[0].origin == "download"


def test_every_file_of_the_mirror_is_the_registrys(mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(downloads.CACHE, str(tmp_path / "cache"))
    for name, about in catalog.registry().items():
        found = pull(name)
        assert [file.file for file in found.files] == list(about["files"])
        for file in found.files:
            assert file.origin == "mirror"
            assert hashlib.sha256(file.path.read_bytes()).hexdigest() == about["files"][file.file]["sha256"]
    assert not (tmp_path / "cache").exists()


# --- a cache that cannot be written ---


def test_a_cache_in_a_files_place(cache: Path):
    cache.write_text("precious")
    line = refused()
    assert line.startswith(f"{SET}: {FILE}: the cache {cache / SET} cannot be written: ")
    assert line.endswith("name another folder in ALLOCATOR_CACHE")
    assert cache.read_text() == "precious"


def test_a_folder_in_the_files_place(cache: Path):
    (cache / SET / FILE).mkdir(parents=True)
    assert "cannot be written: Is a directory" in refused()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_cache_without_permission(cache: Path):
    cache.mkdir()
    cache.chmod(0o500)
    assert "cannot be written: " in refused()
    assert tree(cache) == {}


def test_a_read_only_cache_serves_what_it_has(cache: Path, smallfs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(downloads.CACHE, str(smallfs))
    fetch(SET, only=[OTHER])
    subprocess.run(["mount", "-o", "remount,ro", smallfs], check=True)
    assert pull(SET, only=[OTHER]).files[0].origin == "cache"
    assert "cannot be written: Read-only file system; name another folder in ALLOCATOR_CACHE" in refused()


def test_a_full_disk_leaves_nothing(cache: Path, smallfs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(downloads.CACHE, str(smallfs))
    assert "cannot be written: No space left on device" in refused()
    assert tree(smallfs) == {}


# --- names ---


def test_an_alias_in_any_case(cache: Path):
    assert pull("Runs-Of-Somebody").name == SET


def test_an_unknown_name_gets_a_suggestion(cache: Path):
    with pytest.raises(CatalogError, match=f"^data: 'runs_of_sombody' is not known; did you mean {SET}"):
        fetch("runs_of_sombody")


@pytest.mark.parametrize("name", ["hardware", "gadre_runs", "gadre-runs"])
def test_a_shipped_table_needs_no_download(name: str):
    with pytest.raises(DataError, match=r"^(hardware|gadre_runs): comes with the package and needs no download; see: "):
        fetch(name)


@pytest.mark.parametrize("name", ["../runs.csv", "/runs.csv", "..", "a\\b", "c:d", ""])
def test_no_file_leaves_its_folder(name: str, cache: Path, sets: dict[str, Any], server: Server, tmp_path: Path):
    sets[SET]["files"][name] = sets[SET]["files"].pop(FILE)
    assert f"registry: {name!r} is no plain name" in refused()
    assert server.asked == []
    assert tree(tmp_path) == {}


def test_no_set_leaves_the_cache(cache: Path, sets: dict[str, Any], tmp_path: Path):
    sets["../up"] = sets.pop(SET)
    with pytest.raises(DataError, match=r"registry: '\.\./up' is no plain name"):
        fetch("../up")
    assert tree(tmp_path) == {}


# --- the command ---


def test_the_command_says_what_came_from_where(mirrored: Path, cache: Path, sets: dict[str, Any]):
    out, err = (command := start(sets, "data", "pull", SET)).communicate(timeout=120)
    assert (command.returncode, err) == (0, "")
    first, second = (line.split() for line in out.splitlines()[1:3])
    assert first == [FILE, f"{len(BODY):,}", "bytes", "mirror", str(mirrored / SET / FILE)]
    assert second == [OTHER, str(len(SECOND)), "bytes", "download", str(cache / SET / OTHER)]
    assert "none: the repository states none, so use and cite, do not pass on" in out
    assert "cite:    somebody's" in out


def test_the_commands_json_and_copies(mirrored: Path, sets: dict[str, Any], tmp_path: Path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("mine")
    command = start(sets, "data", "pull", "runs-of-somebody", "--json", "--to", tmp_path / "here")
    out, err = command.communicate(timeout=120)
    assert (command.returncode, err) == (0, "")
    values = json.loads(out)
    assert {"schema", "rows", "warnings", "provenance"} <= set(values)
    assert (values["schema"], values["name"]) == ("allocator.data/1", SET)
    assert [(row["file"], row["bytes"], row["origin"], row["path"]) for row in values["rows"]] == [
        (FILE, len(BODY), "mirror", str(tmp_path / "here" / FILE)),
        (OTHER, len(SECOND), "download", str(tmp_path / "here" / OTHER)),
    ]
    assert [warning["code"] for warning in values["warnings"]] == ["no_licence"]
    assert tree(tmp_path / "here") == {"mine.txt": b"mine", FILE: BODY, OTHER: SECOND}


def test_a_stated_licence_brings_no_warning(cache: Path, sets: dict[str, Any]):
    sets[SET]["licence"] = "Apache-2.0"
    assert pull(SET).to_dict()["warnings"] == []
    assert "licence: Apache-2.0\n" in str(pull(SET))


def test_copies_are_all_or_none(cache: Path, tmp_path: Path):
    (tmp_path / "here" / OTHER).mkdir(parents=True)
    with pytest.raises(AllocatorError, match="cannot be written"):
        pull(SET).copied_to(tmp_path / "here")
    assert tree(tmp_path / "here") == {OTHER: b"folder"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "pull", "runs_of_sombody"], "did you mean"),
        (["data", "pull", "hardware"], "needs no download"),
        (["data", "pull", SET], "404"),
        (["data", "pull", SET, "--json"], "404"),
        (["data", "pull"], "NAME"),
        (["data"], "command"),
    ],
)
def test_wrong_input_and_failures_are_one_line(
    arguments: list[str], words: str, cache: Path, server: Server, sets: dict[str, Any]
):
    server.answer = not_found
    out, err = (command := start(sets, *arguments)).communicate(timeout=120)
    assert (command.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert words in err
