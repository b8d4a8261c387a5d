"""The wheel and the sdist carry the package, its tables and its fits, and work where no checkout is."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging


def run(*arguments: str | Path, **options) -> str:
    """Run a command to its end and return what it printed on stdout; its stderr is in the failure's message."""
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{arguments} exited {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(kind: str, source: Path, out: Path) -> Path:
    """Build one distribution of `source`, `kind` "wheel" or "sdist", with the hatchling of this environment."""
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source)
    (built,) = out.iterdir()
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    """The wheel's files by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tree(folder: Path) -> dict[str, bytes]:
    """The files below `folder`, which may be a link, by path below it."""
    top = folder.resolve()
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", root, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", root, tmp_path_factory.mktemp("sdist"))


@pytest.mark.parametrize("name", ["data", "fits"])
def test_wheel_carries_the_trees_files(root: Path, wheel: Path, name: str) -> None:
    prefix = f"allocator/_resources/{name}/"
    carried = {k.removeprefix(prefix): v for k, v in contents(wheel).items() if k.startswith(prefix)}
    expected = tree(root / "allocator" / "_resources" / name)
    assert expected
    assert carried == expected


def test_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if not (member.isfile() or member.isdir())]
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert contents(build("wheel", source, tmp_path / "out")) == contents(wheel)


def test_wheel_plans_from_an_empty_environment(
    root: Path, wheel: Path, tmp_path: Path, user_environment: dict[str, str]
) -> None:
    constraints = root / "constraints" / ("py313.txt" if sys.version_info >= (3, 13) else "py311.txt")
    environment = {k: v for k, v in user_environment.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run(sys.executable, "-m", "venv", tmp_path / "venv", env=environment)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", "-c", constraints, wheel, env=environment)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    plan = json.loads(run(scripts / "allocator", "plan", "--json", cwd=elsewhere, env=environment))

    # The lecture's plan, as published: D = 1.960e14 tokens of pre-training.
    assert float(f"{plan['decision']['d_pretrain']:.3e}") == 1.960e14
    assert not list(elsewhere.iterdir())
