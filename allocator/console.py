"""What all commands share: arguments, loading, answers as tables, JSON or files, and an output that may go away."""

import gc
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

DONE, NO_PLAN, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

ScenarioName = Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped name, a TOML file, or - for stdin.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, e.g. objective.compute_flop=1e27.")
]


def number(text: str) -> float:
    """A number given on the command line."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


def seed_number(text: str) -> int:
    """A seed given on the command line."""
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if seed < 0:
        raise typer.BadParameter(f"{text!r} is not a whole number >= 0")
    return seed


Seed = Annotated[
    int, typer.Option("--seed", parser=seed_number, metavar="INTEGER", help="Where many starts compete, which ones.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write the tables as CSV, the charts and the JSON.")
]


def print_out(text: str) -> None:
    """Write to standard output; a reader that has gone away is no error, a full disk is one."""
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(DONE)  # at exit Python would try to flush again, and complain
    except (OSError, ValueError, AttributeError) as error:  # closed, or none at all
        with suppress(OSError, ValueError, AttributeError):
            print(f"error: standard output: {getattr(error, 'strerror', None) or 'is closed'}", file=sys.stderr)
        os._exit(WRONG_INPUT)


FAST = "jax_disable_most_optimizations"


@contextmanager
def short_lived() -> Iterator[None]:
    """A command is short, and collecting garbage while JAX is imported and traced costs it a tenth.

    Who calls a command from Python gets back its own settings, those of `compile_fast` too.
    """
    collecting = gc.isenabled()
    compiling = "jax" in sys.modules and sys.modules["jax"].config.read(FAST)
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(FAST, compiling)


def compile_fast() -> None:
    """A command solves once, so what JAX compiles should be ready soon rather than run fast."""
    import jax

    jax.config.update(FAST, True)


def load(scenario: str, sets: Sequence[str] | None) -> Any:
    """The scenario that a command line names, with its overrides."""
    from allocator.scenario.reading import load as load_scenario

    return load_scenario(scenario, overrides=sets or ())


def answer(
    name: str,
    values: Mapping[str, Any],
    draw: Callable[[Any], None],
    files: Callable[[], Mapping[str, str | bytes]],
    as_json: bool,
    out: Path | None,
) -> None:
    """Write the files if asked for, NAME.json among them, then print the JSON object or the tables."""
    if out is not None:
        write(out, {**files(), f"{name}.json": json_text(values)}, quiet=as_json)
    if as_json:
        print_out(json_text(values))
    else:
        show(draw)


def write(out: Path, files: Mapping[str, str | bytes], *, quiet: bool) -> None:
    """Write files to a folder, whole or not at all."""
    from allocator.outputs import write_folder

    write_folder(out, files)
    if not quiet:
        print_out(f"wrote {', '.join(files)} to {out}")


def json_text(values: Mapping[str, Any]) -> str:
    """One JSON object, in which every number is finite."""
    return json.dumps(values, indent=1, allow_nan=False)


def show(draw: Callable[[Any], None]) -> None:
    """Draw tables on a console, then write them at once."""
    from rich.console import Console

    terminal = sys.stdout is not None and sys.stdout.isatty()
    # Piped output keeps its columns: 120 is what a table needs, whatever the terminal would be.
    width = max(shutil.get_terminal_size().columns, 100) if terminal else 120
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, markup=False)
    draw(console)
    drawn = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    print_out("\n".join(line.rstrip() for line in drawn.splitlines()))
