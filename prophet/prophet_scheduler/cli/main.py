"""The `prophet` command.

Rule of this file: arguments in, exit status out. Imports are inside the commands to keep `prophet --help` quick. Exit
status 2 means bad input, 130 Ctrl-C, and 1 a failed policy in an experiment, a replay that differs, or a failed script
on the testbed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import prophet_scheduler
from prophet_scheduler import plugins
from prophet_scheduler.cli.options import exit_status, parsed
from prophet_scheduler.core.errors import UserError

if TYPE_CHECKING:
    from prophet_scheduler.lab.config import Experiment

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="A communication scheduler that makes data-parallel training faster on slow networks.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prophet {prophet_scheduler.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


class ListsPolicies(TyperCommand):
    """Command whose help ends with a list of policies, which only the help imports."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from prophet_scheduler.cli.policies_view import policies_help

        self.epilog = policies_help()
        super().format_help(ctx, formatter)


def _print_json(value: object) -> None:
    from json import dumps

    from pydantic_core import to_jsonable_python

    typer.echo(dumps(to_jsonable_python(value), indent=2))


def _experiment(
    config: Path, policies: list[str] | None, repeats: int | None, out: Path | None, label: str
) -> tuple[Experiment, Path]:
    """Return a config's experiment and the folder for its results. Warn of variables that have no effect on it."""
    from prophet_scheduler.lab.config import load_experiment
    from prophet_scheduler.lab.launchers import without_effect
    from prophet_scheduler.lab.shipped import config_path

    experiment = load_experiment(config_path(config), policies or (), repeats)
    if line := without_effect(os.environ, config):
        typer.echo(f"prophet: {line}", err=True)
    return experiment, out or Path("results") / f"{experiment.name}{label}-{time.strftime('%Y%m%d-%H%M%S')}"


def _list_configs(wanted: bool) -> None:
    if wanted:
        from rich.table import Table

        from prophet_scheduler.lab.screen import screen
        from prophet_scheduler.lab.shipped import shipped

        table = Table.grid(padding=(0, 2))
        for name, words in shipped():
            table.add_row(name, words)
        screen().print(table)
        raise typer.Exit


Config = Annotated[Path, typer.Argument(help="An experiment: a file, or one of --list, such as quickstart.")]
Out = Annotated[Path | None, typer.Option(help="Folder for results; default: results/NAME-TIME.")]
Policies = Annotated[list[str] | None, typer.Option(help="Run only this policy; may be repeated.")]
Repeats = Annotated[int | None, typer.Option(min=1, help="Number of repeats, instead of the config's.")]
ListsConfigs = Annotated[
    bool,
    typer.Option("--list", callback=_list_configs, is_eager=True, help="List the experiments that come with Prophet."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Workers = Annotated[int, typer.Option(min=1, help="Number of workers.")]
Delay = Annotated[str, typer.Option(help="Delay of each worker's link, one way, such as 1ms.")]


@app.command(cls=ListsPolicies)
def run(
    config: Config, out: Out = None, policy: Policies = None, repeats: Repeats = None, listed: ListsConfigs = False
) -> None:
    """Run an experiment: real jobs on a slow network emulated on this machine."""
    from prophet_scheduler.lab.session import run_session

    raise typer.Exit(1 if run_session(*_experiment(config, policy, repeats, out, "")) else 0)


@app.command(cls=ListsPolicies)
def simulate(
    config: Config, out: Out = None, policy: Policies = None, repeats: Repeats = None, listed: ListsConfigs = False
) -> None:
    """Simulate an experiment: the same config on a virtual clock, in seconds and without a network."""
    from prophet_scheduler.lab.session import simulate_session

    experiment, folder = _experiment(config, policy, repeats, out, "-simulated")
    raise typer.Exit(1 if simulate_session(experiment, folder) else 0)


@app.command()
def profile(
    file: Annotated[
        Path, typer.Argument(help="A profile written by PROPHET_PROFILE_OUT, or a trace of torch.profiler.")
    ],
    json: Json = False,
) -> None:
    """Show when a job's gradients are generated: its stepwise pattern."""
    from prophet_scheduler.cli.profiles_view import profile_table
    from prophet_scheduler.core.profile import find_steps
    from prophet_scheduler.lab.screen import screen
    from prophet_scheduler.models.profiles import load_profile

    loaded = load_profile(file)
    if json:
        _print_json({"profile": loaded, "steps": find_steps(loaded)})
    else:
        screen().print(profile_table(loaded))


@app.command()
def replay(
    events: Annotated[Path, typer.Argument(help="A record of events written by PROPHET_EVENTS_OUT.")],
) -> None:
    """Let the queue repeat a recorded job's decisions, and show each that differs."""
    from prophet_scheduler.core.event_record import load_record
    from prophet_scheduler.simulate.replay import replay as replay_record
    from prophet_scheduler.simulate.replay import story

    record = load_record(events)
    if record.agreed:
        raise UserError(
            f"{events} is from a job whose ranks agreed on the sequence of blocks; there are no decisions to replay"
        )
    result = replay_record(record)
    for line in story(result):
        typer.echo(line)
    raise typer.Exit(1 if result.differences else 0)


@app.command()
def plan(
    profile: Annotated[str, typer.Argument(help="A profile: a file, or a built-in one such as resnet50.")],
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of each worker's link, such as 3gbit.")],
    workers: Workers = 2,
    engine: Annotated[str, typer.Option(help="Engine that moves the gradients: ddp or byteps.")] = "ddp",
    servers: Annotated[int, typer.Option(min=1, help="Number of servers, with byteps.")] = 1,
    json: Json = False,
) -> None:
    """Show what Prophet would do with a job on a network, and how all policies compare."""
    from prophet_scheduler.cli.plan_view import block_table, outlook, policy_table
    from prophet_scheduler.core.units import parse_rate
    from prophet_scheduler.lab.screen import screen
    from prophet_scheduler.models.profiles import find_profile

    rate = parsed("--bandwidth", bandwidth, parse_rate)
    wanted, console = find_profile(profile), screen()
    with console.status("simulating"):
        view = outlook(wanted, rate, workers, servers, engine)
    if json:
        shown = {"engine": view.engine.name, "lower_bound_s": view.lower_bound_s, "iteration_s": view.iteration_s}
        _print_json({**shown, "blocks": view.schedule.blocks})
    else:
        console.print(block_table(view))
        console.print(policy_table(view))


@app.command()
def advise(
    source: Annotated[
        str,
        typer.Argument(
            help="A profile (a file, or a built-in one such as resnet50), or a folder written by a job with "
            "PROPHET_RECORD."
        ),
    ],
    bandwidth: Annotated[str | None, typer.Option(help="Bandwidth of workers' or hosts' links, such as 3gbit.")] = None,
    status: Annotated[
        Path | None, typer.Option(help="Take the bandwidth from this file, written by a job with PROPHET_STATUS_OUT.")
    ] = None,
    workers: Workers = 2,
    servers: Annotated[int, typer.Option(min=1, help="Number of servers; a DDP job has none.")] = 1,
    server_bandwidth: Annotated[
        str | None,
        typer.Option(help="Bandwidth of each server's link; default: no limit or, for a record, that of workers."),
    ] = None,
    delay: Delay = "0ms",
    workers_per_host: Annotated[int, typer.Option(min=1, help="Number of workers that share a host's link.")] = 1,
    policy: Annotated[
        str | None,
        typer.Option(
            help="How the job runs: ddp-gloo, ddp-prophet, fsdp2, fsdp2-prophet, stock (BytePS), prophet, or another; "
            "default: ddp-gloo."
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, help="FSDP2: number of workers that shard the parameters (fewer than all: HSDP); default: all."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="FSDP2: keep parameters after forward (reshard_after_forward=False).")
    ] = False,
    json: Json = False,
) -> None:
    """Say whether the network holds a job back, and what would help."""
    from prophet_scheduler.cli.advice_view import advice_table, left_out, verdict
    from prophet_scheduler.core.units import parse_rate, parse_time
    from prophet_scheduler.lab.advice import advise as advise_on
    from prophet_scheduler.lab.advice_sources import LinkOptions, of_profile, of_record
    from prophet_scheduler.lab.screen import screen
    from prophet_scheduler.models.profiles import find_profile

    rate, server_rate = (
        None if text is None else parsed(option, text, parse_rate)
        for option, text in (("--bandwidth", bandwidth), ("--server-bandwidth", server_bandwidth))
    )
    delay_s = parsed("--delay", delay, parse_time)
    links = LinkOptions(rate, server_rate, delay_s, workers, servers, workers_per_host, shards, keep)
    measured_s = None
    if (folder := Path(source)).is_dir():
        if status is not None:
            raise UserError(f"{source} is a job's record, which has its own status; leave --status out")
        situation, measured_s = of_record(folder, links, policy)
    else:
        situation = of_profile(find_profile(source), policy, links, status)
    advice = advise_on(situation, measured_s)
    if json:
        _print_json(advice)
        return
    console = screen()
    console.print(verdict(advice), soft_wrap=True, highlight=False)
    console.print(advice_table(advice))
    for line in left_out(advice):
        console.print(f"  {line}", style="dim", soft_wrap=True, highlight=False)


# Options after the first word of the worker's command belong to that command.
@app.command(context_settings={"allow_interspersed_args": False})
def testbed(
    command: Annotated[list[str], typer.Argument(help="Command that each worker runs, such as: python train.py")],
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of each worker's link, each way, such as 250mbit.")],
    workers: Annotated[int, typer.Option(min=2, help="Number of workers.")] = 2,
    delay: Delay = "0ms",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Compare the command with itself under this variable, such as PROPHET_SCHEDULER=prophet; may be "
            "repeated.",
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="With --compare: number of runs of each, by turns.")] = 3,
    seconds: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="With --compare: compare the last number that this finds in the output, not the command's total time.",
        ),
    ] = None,
) -> None:
    """Run your own DistributedDataParallel or FSDP2 script over slow links emulated on this machine."""
    from prophet_scheduler.core.units import parse_rate, parse_time
    from prophet_scheduler.lab.own_script import Links, compare_on_testbed, run_on_testbed

    rate, delay_s = parsed("--bandwidth", bandwidth, parse_rate), parsed("--delay", delay, parse_time)
    links = Links(workers, rate, delay_s)
    if compare:
        raise typer.Exit(compare_on_testbed(command, links, compare, pairs, seconds, typer.echo))
    if seconds is not None:
        raise UserError("--seconds is for --compare; leave it out, or give both")
    raise typer.Exit(run_on_testbed(command, links, typer.echo))


@app.command()
def top(
    job: Annotated[
        str | None, typer.Argument(help="A job, or the beginning of its name; default: all your jobs.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line instead of a screen.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Exit after this many updates; else on q or Ctrl-C.")] = None,
) -> None:
    """Show what the jobs under Prophet on this machine do, each second. Without --count, wait for one to start."""
    from prophet_scheduler.cli.top import print_lines, show

    (print_lines if json else show)(job, count)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder written by `prophet run` or PROPHET_RECORD.")],
    out: Annotated[Path | None, typer.Option(help="File for the page; default: report.html in that folder.")] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing to this file instead of a page.")
    ] = None,
) -> None:
    """Write a self-contained HTML page about a run, readable offline."""
    from prophet_scheduler.lab.report import write_report, write_trace

    if perfetto is not None:
        if out is not None:
            raise UserError("--out is for the page, but --perfetto writes none; leave one of them out")
        write_trace(folder, perfetto)
        typer.echo(f"the trace is in {perfetto}")
        return
    page = out or folder / "report.html"
    write_report(folder, page)
    typer.echo(f"the report is in {page}")


@app.command()
def doctor(json: Json = False) -> None:
    """Say what this machine can do, what is missing, and whether a job can start under Prophet here (the last line).

    Exit with status 0 if a job can start with at least one engine, else 2.
    """
    from prophet_scheduler.lab.doctor import examine, verdict

    findings, (ready, line) = examine(), verdict()
    if json:
        _print_json({"ready": ready, "verdict": line, "findings": findings})
    else:
        for finding in findings:
            typer.echo(str(finding))
        typer.echo(f"verdict  {line}")
    raise typer.Exit(0 if ready else 2)


for _name in plugins.entries(plugins.COMMANDS):
    app.command(_name)(plugins.load(plugins.COMMANDS, _name))


def _terminated(signum: int, frame: object) -> None:
    # Exit through all context managers, as on Ctrl-C, so that the testbed is removed.
    raise KeyboardInterrupt


_UsageError: Any = typer.BadParameter.__base__
"""Error that typer raises for invalid arguments; typer exports no name for it."""


def main() -> None:
    """Run the command line; each user error becomes one line on standard error."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        # Inside a command, typer turns an interruption into the same status.
        sys.exit(exit_status(lambda: app(prog_name="prophet", standalone_mode=False)))
    except _UsageError as error:
        if sys.argv[1:]:  # without arguments, typer has printed the help
            command = error.ctx.command_path if error.ctx is not None else "prophet"
            absent = plugins.absent(sys.argv[1]) if command == "prophet" else ""
            said = absent or f"{error.format_message().rstrip('.')}; see `{command} --help`"
            print(f"prophet: {said}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
