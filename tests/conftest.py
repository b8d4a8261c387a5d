"""Strict modes for every test, and the outside things that some tests need.

A test that needs an outside thing takes its fixture, `mirror`, `browser` or `smallfs`, and is marked with that name.
Without the thing it skips and says why; if the variable ALLOCATOR_REQUIRE lists the name, it fails instead.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

# JAX reads these when it is first imported, so a test without JAX pays nothing and child processes are strict too.
# A test that shows what a user's own process does takes `user_environment`, which lacks them.
STRICT = {
    "JAX_ENABLE_X64": "1",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_DEBUG_NANS": "0",
}
if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could make it strict")
os.environ.update(STRICT)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, of the same programs in many processes: they share what they compiled.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="allocator-compiled-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("shared", deadline=None, derandomize=True)
hypothesis.settings.load_profile("shared" if os.environ.get("CI") else "local")

ROOT = Path(__file__).resolve().parent.parent


def missing(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it if ALLOCATOR_REQUIRE lists `name`."""
    if name in os.environ.get("ALLOCATOR_REQUIRE", "").replace(" ", "").split(","):
        pytest.fail(f"ALLOCATOR_REQUIRE lists {name}, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the outside things whose fixtures it takes."""
    for item in items:
        for name in ("mirror", "browser", "smallfs"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After a module, forget compiled programs where they are many: a process may have 65,530 memory maps, no more."""
    maps = Path("/proc/self/maps")
    if "jax" not in sys.modules or not maps.exists() or (nextitem is not None and nextitem.path == item.path):
        return
    if maps.read_bytes().count(b"\n") > 25_000:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return ROOT


@pytest.fixture
def user_environment() -> dict[str, str]:
    """The environment variables of a user who has set none of JAX's, for a child process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "ALLOCATOR_"))}


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of third-party data sets that ALLOCATOR_DATA_MIRROR names."""
    folder = os.environ.get("ALLOCATOR_DATA_MIRROR")
    if not folder:
        missing("mirror", "ALLOCATOR_DATA_MIRROR is not set")
    if not Path(folder).is_dir():
        missing("mirror", f"ALLOCATOR_DATA_MIRROR names no folder: {folder}")
    return Path(folder)


@pytest.fixture(scope="session")
def browser() -> Path:
    """The path of a Chromium to start headless."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    missing("browser", "there is no chromium on the PATH")


@pytest.fixture
def smallfs(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 64 KiB, to be filled up."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        missing("smallfs", "a small file system takes `mount` and root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        missing("smallfs", f"no tmpfs could be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
