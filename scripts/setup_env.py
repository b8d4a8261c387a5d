"""Makes the project's environment, with the standard library alone: `python3 scripts/setup_env.py`.

A virtual environment in `.venv` beside pyproject.toml (elsewhere with the variable VENV), the pins of
constraints/ for the Python that runs this, and the checkout itself with its test and dev extras, editable.
A second run does nothing until pyproject.toml, the pins, the Python or the checkout's place change.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (3, 11)


def fail(message):
    sys.exit("setup_env: " + message)


def constraints_file():
    """The newest pins are for Python 3.13 and later; those for 3.11 serve 3.12 too."""
    return ROOT / "constraints" / ("py313.txt" if sys.version_info >= (3, 13) else "py311.txt")


def fingerprint(constraints):
    """A digest of everything that the environment was made from."""
    digest = hashlib.sha256()
    for part in (sys.version, os.path.realpath(sys.base_prefix), str(ROOT)):
        digest.update(part.encode() + b"\0")
    for path in (ROOT / "pyproject.toml", constraints):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def run(arguments, complaint):
    if subprocess.call([str(argument) for argument in arguments]) != 0:
        fail(complaint)


def main():
    if sys.version_info < NEEDED:
        fail(
            "needs Python {}.{} or newer, and {} is {}; name a newer one, as in `make plan PYTHON=python3.13`".format(
                NEEDED[0], NEEDED[1], sys.executable, sys.version.split()[0]
            )
        )
    constraints = constraints_file()
    folder = Path(os.environ.get("VENV") or ROOT / ".venv").absolute()
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / "allocator-setup.sha256"
    wanted = fingerprint(constraints)
    if python.exists() and stamp.is_file() and stamp.read_text() == wanted:
        return

    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        fail("{} has no venv or ensurepip module; on Debian, `apt-get install python3-venv`".format(sys.executable))
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        fail("{} is there and is no virtual environment; move it or set VENV to another folder".format(folder))
    print(
        "setup_env: making {} with the pins of {}; a minute or two".format(folder, constraints.relative_to(ROOT)),
        flush=True,
    )
    run([sys.executable, "-m", "venv", "--clear", folder], "`{} -m venv` failed (see above)".format(sys.executable))
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(
        [*pip, "-c", constraints, "-e", "{}[test,dev]".format(ROOT)],
        "pip failed (see above); the next run starts again",
    )
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
