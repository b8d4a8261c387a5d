"""The commands: they parse, call and print; whatever computes is imported inside them, so that --help is instant."""

import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from allocator import __version__, cli_decisions
from allocator.console import (
    DONE,
    INTERRUPTED,
    NO_PLAN,
    WRONG_INPUT,
    Json,
    Out,
    Overrides,
    ScenarioName,
    Seed,
    answer,
    compile_fast,
    json_text,
    load,
    number,
    print_out,
    seed_number,
    short_lived,
    show,
    write,
)
from allocator.errors import AllocatorError, NoPlanError, ScenarioError
from allocator.units import one_line

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Plan a language model's lifetime compute: parameters, pre-training tokens, RL tokens, test-time samples.",
)
scenario_app = typer.Typer(rich_markup_mode=None, help="Write, check or show a scenario file.")
app.add_typer(scenario_app, name="scenario")
roofline_app = typer.Typer(rich_markup_mode=None, help="What a token costs on real chips.")
app.add_typer(roofline_app, name="roofline")
data_app = typer.Typer(rich_markup_mode=None, help="Fetch third-party data sets, which are not shipped.")
app.add_typer(data_app, name="data")


class Kind(StrEnum):
    """What the catalogue holds."""

    hardware = "hardware"
    models = "models"
    laws = "laws"
    data = "data"
    scenarios = "scenarios"


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        print_out(__version__)
    elif context.invoked_subcommand is None:
        print_out(context.get_help())


@app.command()
def plan(
    scenario: ScenarioName = "lecture", sets: Overrides = None, as_json: Json = False, out: Out = None, seed: Seed = 0
) -> None:
    """Find the best split of a lifetime budget, and say how much worse the rules of thumb are."""
    loaded = load(scenario, sets)
    compile_fast()
    from allocator.optimum.warmup import compile_ahead

    compiling = compile_ahead(loaded)
    from allocator.baselines import with_baselines
    from allocator.optimum.planning import solve

    compiling.join()
    result = solve(loaded, throw=False, seed=seed)
    _show_plan(with_baselines(result) if result.decision is not None else result, as_json, out)


@app.command()
def evaluate(
    scenario: ScenarioName = "lecture",
    n_active: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="Active parameters.")] = None,
    d_pretrain: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Pre-training tokens.")
    ] = None,
    d_rl: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="RL tokens.")] = None,
    k: Annotated[float | None, typer.Option(parser=number, metavar="NUMBER", help="Samples per query.")] = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Score given decisions; those not given on the command line are taken from the scenario where it fixes them."""
    loaded = load(scenario, sets)
    compile_fast()
    given = {"n_active": n_active, "d_pretrain": d_pretrain, "d_rl": d_rl, "k": k}
    from allocator.optimum.planning import evaluate as evaluate_decision
    from allocator.scenario.building import fixed_decisions

    decisions = fixed_decisions(loaded) | {name: value for name, value in given.items() if value is not None}
    missing = [name for name in given if name not in decisions]
    if missing:
        raise ScenarioError([f"decisions.{name}: not fixed by the scenario; give --{name.replace('_', '-')}"
                             for name in missing])  # fmt: skip
    names = "n_active", "d_pretrain", "d_rl", "k"
    scored = evaluate_decision(loaded, **{name: decisions[name] for name in names})  # pyright: ignore
    _show_plan(scored, as_json, out, schema="allocator.evaluate/1")


@app.command()
def compare(
    scenario: ScenarioName = "lecture",
    also: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="SCENARIO", help="Another scenario to set beside it, say in another form."),
    ] = None,
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Plan under every law that makes sense for the scenario, and show what each wastes where another holds."""
    loaded = load(scenario, sets)
    others = {name: load(name, None) for name in also or ()}
    compile_fast()
    from allocator import comparisons, report
    from allocator.optimum.planning import solve

    compared = comparisons.compare(solve(loaded), also=others)

    def files() -> dict[str, str | bytes]:
        from allocator.exports import comparison_files

        return comparison_files(compared)

    values = report.comparison_dict(compared)
    answer("compare", values, lambda console: report.print_comparison(compared, console), files, as_json, out)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A scenario: a shipped name or a TOML file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    sets: Overrides = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Solve two scenarios and show what differs; --set applies to both."""
    scenarios = [load(name, sets) for name in (a, b)]
    compile_fast()
    from allocator import report
    from allocator.comparisons import diff as differences
    from allocator.optimum.planning import solve

    rows = differences(*(solve(scenario) for scenario in scenarios))

    def files() -> dict[str, str | bytes]:
        from allocator.exports import rows_csv

        return {"diff.csv": rows_csv(rows)}

    values = report.rows_dict("diff", rows)
    answer("diff", values, lambda console: report.print_diff(rows, (a, b), console), files, as_json, out)


@app.command()
def catalog(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; nothing lists the kinds.")] = None,
    name: Annotated[str | None, typer.Argument(help="Show one entry whole, each figure with unit and source.")] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """List chips, models, laws, data sets and scenarios, with units and sources."""
    from allocator import listings

    if kind is None:
        listing = listings.kinds()
    else:
        listing = listings.entries(kind.value) if name is None else listings.entry(kind.value, name)
    files = {f"{listing.name}.csv": listing.to_csv()}
    answer(listing.name, listing.to_dict(), lambda console: listings.print_listing(listing, console), lambda: files,
            as_json, out)  # fmt: skip


@data_app.command("pull")
def data_pull(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set: see allocator catalog data.")],
    as_json: Json = False,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Copy the files there.")] = None,
) -> None:
    """Fetch a data set from its mirror, the cache or its pinned address; sizes and hashes are checked."""
    from allocator import downloads

    pulled = downloads.pull(name)
    if to is not None:
        pulled = pulled.copied_to(to)
    print_out(json_text(pulled.to_dict()) if as_json else str(pulled))


@app.command()
def fit(
    name: Annotated[
        str | None, typer.Argument(help="A fit with a recipe: a shipped name, one of ./fits, or a recipe.toml.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="FILE", help="A CSV of your own runs instead.")] = None,
    law: Annotated[
        str | None, typer.Option(help="chinchilla, gadre, data-constrained, rl-power, pass-at-k, product, ...")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="huber[:DELTA], asymmetric[:PENALTY] or least-squares.")] = None,
    residuals: Annotated[str | None, typer.Option(help="log or linear; as usual for the law, if not given.")] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="OURS=THEIRS", help="What a column is called in the file.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", metavar="COLUMN=VALUE", help="Keep the rows of which this holds.")
    ] = None,
    fixed: Annotated[
        list[str] | None, typer.Option("--fix", metavar="NAME=NUMBER", help="A parameter that is not estimated.")
    ] = None,
    drop_lowest: Annotated[
        int | None,
        typer.Option("--drop-lowest-tokens-per-param", metavar="INTEGER", help="Leave out so many runs of lowest D/N."),
    ] = None,
    pretraining_loss: Annotated[
        str | None,
        typer.Option(metavar="LAW", help="For pass-at-k: the law whose L0(N, D) stands for a measured loss."),
    ] = None,
    starts: Annotated[int | None, typer.Option(help="Starting points of the search.")] = None,
    bootstrap: Annotated[int | None, typer.Option(help="Refits of resampled runs.")] = None,
    resample: Annotated[str | None, typer.Option(help="pairs or wild.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Column whose runs are drawn together.")] = None,
    at_flop: Annotated[
        float | None, typer.Option(parser=number, metavar="NUMBER", help="Budget 6 N D at which N* is told.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", parser=seed_number, metavar="INTEGER", help="Of starts and refits.")
    ] = None,
    choices: Annotated[
        bool, typer.Option("--choices", help="Fit under several losses and outlier rules instead, N* for each.")
    ] = False,
    save_as: Annotated[str | None, typer.Option("--name", help="Name of the law; the file's, if not given.")] = None,
    as_json: Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the law, a page, tables and charts to DIR/NAME.")
    ] = None,
) -> None:
    """Fit a law to runs, with intervals and doubts; the law goes to ./fits/NAME, or with a page to DIR/NAME."""
    from allocator.fitting import commands

    recipe, folder, called = commands.recipe_of(
        name,
        data,
        save_as,
        lists={"columns": column, "where": where, "fixed": fixed},
        values={"law": law, "loss": loss, "residuals": residuals, "starts": starts, "bootstrap": bootstrap,
                "pretraining_loss": pretraining_loss, "resample": resample, "cluster": cluster, "at_flop": at_flop,
                "seed": seed},
        drop_lowest=drop_lowest,
    )  # fmt: skip
    if choices:
        from allocator.fitting import choices as fit_choices

        compared = fit_choices.compare(recipe, folder)
        answer("choices", compared.to_dict(), lambda console: console.print(str(compared), soft_wrap=True),
                lambda: {"choices.csv": compared.to_csv()}, as_json, out and out / called)  # fmt: skip
        return
    from allocator.fitting.recipes import carry_out

    result = carry_out(recipe, folder)
    target = (out or Path("fits")) / called
    files = commands.files_of(result, called, recipe, folder, target)
    if out is not None:
        from allocator.fit_pages import page_files

        files |= page_files(result, called, recipe) | {"fit.json": json_text(result.to_dict())}
    if as_json:
        print_out(json_text(result.to_dict() | {"name": called}))
    else:
        print_out(str(result))
    if files:
        write(target, files, quiet=as_json)


for name, command in cli_decisions.COMMANDS.items():
    app.command(name)(command)


@roofline_app.callback(invoke_without_command=True)
def roofline(
    context_: typer.Context,
    hardware: Annotated[str | None, typer.Option(help="Chip, a name of: allocator catalog hardware.")] = None,
    model: Annotated[str | None, typer.Option(help="Model, a name of: allocator catalog models.")] = None,
    chips: Annotated[float, typer.Option(parser=number, metavar="INTEGER", help="Chips that serve together.")] = 1,
    batch: Annotated[
        float, typer.Option(parser=number, metavar="INTEGER", help="Sequences that a step decodes together.")
    ] = 1,
    context: Annotated[
        float | None,
        typer.Option(
            parser=number, metavar="TOKENS", help="Context length a decoded token sees (default: prompt + output/2)."
        ),
    ] = None,
    prompt: Annotated[
        float | None,
        typer.Option(parser=number, metavar="TOKENS", help="Prompt length (default: the context, or 4096)."),
    ] = None,
    output: Annotated[
        float | None,
        typer.Option(
            parser=number,
            metavar="TOKENS",
            help="Output length where the same chips read the prompts (default: other chips do).",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Number format of arithmetic: bf16, fp8, int8 or fp4.")] = "bf16",
    weight_dtype: Annotated[
        str | None, typer.Option(help="Number format of weights as they are read (default: that of arithmetic).")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Number format of the KV cache (default: that of arithmetic, 8 bits at least).")
    ] = None,
    tensor: Annotated[
        float | None, typer.Option(parser=number, metavar="INTEGER", help="Tensor-parallel degree (default: chosen).")
    ] = None,
    expert: Annotated[
        float | None, typer.Option(parser=number, metavar="INTEGER", help="Expert-parallel degree (default: chosen).")
    ] = None,
    pipeline: Annotated[float, typer.Option(parser=number, metavar="INTEGER", help="Pipeline stages.")] = 1,
    usd_per_chip_hour: Annotated[
        float | None, typer.Option(parser=number, metavar="USD", help="Price of a chip (default: the catalogue's).")
    ] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Say what a decode step and a prefill take on real chips, what binds, what fits and what a token costs."""
    if context_.invoked_subcommand is not None:
        # Each source is an enumeration of click's, which typer may carry along under a name of its own.
        given = [name for name in context_.params
                 if getattr(context_.get_parameter_source(name), "name", "") == "COMMANDLINE"]  # fmt: skip
        if given:
            told = ", ".join({"as_json": "--json"}.get(name, f"--{name.replace('_', '-')}") for name in given)
            raise typer.BadParameter(f"{told}: must come after {context_.invoked_subcommand}, if that takes it")
        return
    missing = [f"--{name}" for name, value in (("hardware", hardware), ("model", model)) if value is None]
    if missing:
        raise typer.BadParameter(f"give {' and '.join(missing)}; see: allocator catalog")
    compile_fast()
    from allocator.rooflines import roofline as drawn

    result = drawn(str(hardware), str(model), chips=chips, batch=batch, context=context, prompt=prompt, output=output,
                   dtype=dtype, weight_dtype=weight_dtype, kv_dtype=kv_dtype, tensor=tensor, expert=expert,
                   pipeline=pipeline, usd_per_chip_hour=usd_per_chip_hour)  # fmt: skip
    from allocator import roofline_report

    def files() -> Mapping[str, str | bytes]:
        from allocator import roofline_pages

        return roofline_pages.files(result)

    answer("roofline", result.to_dict(), lambda console: roofline_report.print_roofline(result, console),
            files, as_json, out)  # fmt: skip


@roofline_app.command("check")
def roofline_check(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A CSV of measured serving, or serving_measurements, which is shipped."),
    ],
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Set measured serving against the roofline, row by row."""
    from allocator import roofline_checks, roofline_report

    def files() -> Mapping[str, str | bytes]:
        from allocator import roofline_pages

        return roofline_pages.check_files(checked)

    checked = roofline_checks.check(file)
    answer("check", checked.to_dict(), lambda console: roofline_report.print_check(checked, console),
            files, as_json, out)  # fmt: skip


@scenario_app.command("new")
def scenario_new(path: Annotated[Path | None, typer.Argument(help="File to write; nothing prints it.")] = None) -> None:
    """Write a scenario to start from, every key explained."""
    from allocator.catalog import scenario_template
    from allocator.outputs import write_new_file

    if path is None or str(path) == "-":
        print_out(scenario_template())
    else:
        write_new_file(path, scenario_template())
        print_out(f"wrote {path}; next: allocator plan {path}")


@scenario_app.command("check")
def scenario_check(scenario: ScenarioName, sets: Overrides = None, as_json: Json = False) -> None:
    """Check a scenario file; every fault is one line with its key path."""
    loaded = load(scenario, sets)
    print_out(json_text({"schema": "allocator.scenario/1", "valid": True, "title": loaded.title}) if as_json else
          f"{scenario}: ok ({one_line(loaded.title)})")  # fmt: skip


@scenario_app.command("show")
def scenario_show(scenario: ScenarioName = "lecture", sets: Overrides = None, as_json: Json = False) -> None:
    """Print a scenario as it is understood, with overrides applied and defaults filled in."""
    values = load(scenario, sets).with_defaults()
    if as_json:
        print_out(json_text({"schema": "allocator.scenario/1", "scenario": values}))
        return
    import tomli_w

    print_out(tomli_w.dumps(values))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command; errors are one line each on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? for a bar
    try:
        with short_lived():
            code = typer.main.get_command(app).main(arguments, prog_name="allocator", standalone_mode=False)
    except SystemExit as error:  # typer's own answer to a reader that has gone away while it printed help
        os._exit(DONE if error.code == NO_PLAN else WRONG_INPUT)
    except typer.TyperException as error:  # a wrong command line
        _fail([error.format_message() if isinstance(error, typer.BadParameter) else str(error)])
    except NoPlanError as error:
        _fail([error.reason], NO_PLAN)
    except ScenarioError as error:
        _fail(error.lines)
    except AllocatorError as error:
        _fail([str(error)])
    except (typer.Abort, KeyboardInterrupt):
        _interrupted()
    sys.exit(code if isinstance(code, int) else DONE)


def _interrupted(*_: Any) -> NoReturn:
    """Leave at once: a thread that is compiling cannot be unwound."""
    with suppress(OSError, ValueError, AttributeError):
        print("error: interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def _fail(lines: Sequence[str], code: int = WRONG_INPUT) -> NoReturn:
    for line in lines:
        print(f"error: {' '.join(str(line).split())}", file=sys.stderr)
    sys.exit(code)


def _show_plan(result: Any, as_json: bool, out: Path | None, schema: str | None = None) -> None:
    values = result.to_dict() | ({"schema": schema} if schema else {})
    if out is not None and result.decision is not None:
        from allocator.exports import plan_files

        write(out, plan_files(result) | {"plan.json": json_text(values)}, quiet=as_json)
    if as_json:
        print_out(json_text(values))
    elif result.decision is not None:
        from allocator.report import print_plan

        show(lambda console: print_plan(result, console))
    if result.decision is None:
        raise NoPlanError(str(result.reason))
