"""Common parts of commands: options, output, and the environment and signals that they pass on."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.exceptions import Exit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED = 1
USAGE_ERROR = 2
INTERRUPTED = 128 + signal.SIGINT
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# Tables keep their shape where the output is not a terminal.
LOG_WIDTH = 120

PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
transport_option = click.option(
    "--transport", default="", show_default=False, help="auto, tcp or shm; default: as configured."
)
log_level_option = click.option(
    "--log-level", default="info", help="error, warning, info or debug."
)
until_eof_option = click.option("--until-eof", is_flag=True, hidden=True)
command_argument = click.argument("command", nargs=-1, required=True)


class Group(click.Group):
    """Commands, shown in the order in which they are declared. ``options``: those of `click.Group`.

    Without arguments it shows its help, which is an error. ^C ends it without a message.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        settings = {"show_default": True, "max_content_width": LOG_WIDTH}
        super().__init__(*arguments, context_settings=settings, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Of each the whole first paragraph; click would cut it."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        first = {
            name: " ".join((command.help or "").partition("\n\n")[0].split())
            for name, command in commands.items()
            if command is not None
        }
        with formatter.section("Commands"):
            formatter.write_dl(list(first.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # as shells ask to complete
            click.echo(ctx.get_help())
            ctx.exit(USAGE_ERROR)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Exit(INTERRUPTED) from None


# Only commands that print tables load rich.


def console(**options: Any) -> "Console":
    """For the standard output. ``options``: those of `rich.console.Console`."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else LOG_WIDTH, **options)


def new_table(title: str, *columns: str) -> "Table":
    """An empty table with a title above it."""
    from rich.table import Table

    found = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        found.add_column(column, overflow="fold")
    return found


def fail(error: Exception) -> NoReturn:
    """Says what is wrong, and ends the command."""
    from rich.console import Console

    Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
    raise Exit(FAILED) from error


def inherited_environment() -> dict[str, str]:
    """A copy of the caller's, with all variables. The core reads the settings of dmlcomm."""
    return dict(os.environ)


def wait_for(process: "subprocess.Popen[Any]") -> int:
    """Passes on signals until the process has ended; its exit code."""

    def forward(number: int, _: FrameType | None) -> None:
        # A terminal sends its signals to the process, too.
        if not (number == signal.SIGINT and sys.stdin.isatty()):
            process.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    return exit_code(process.wait())


def exit_code(returned: int) -> int:
    """As shells report it: 128 + n for a process that signal n has ended."""
    return 128 - returned if returned < 0 else returned


def end() -> NoReturn:
    """Ends the process at once, with exit code 0.

    Python would end threads that are on their way back from C++ there, which aborts the process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class StopSignals:
    """SIGTERM and SIGINT as something to wait for."""

    def __init__(self) -> None:
        self._numbers = {signal.SIGTERM, signal.SIGINT}
        # Blocked here, before there are threads: none of them gets the signal instead of wait().
        signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)

    def also_when_stdin_ends(self) -> None:
        """Ends the process with its parent, which holds the other end, and may die silently."""

        def watch() -> None:
            while os.read(0, 4096):  # no lock of sys.stdin, which would hold up the end
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, name="dmlcomm-stdin", daemon=True).start()

    def wait(self) -> None:
        signal.sigwait(self._numbers)
