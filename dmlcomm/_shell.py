"""Common parts of commands: options, output, and the environment and signals that they pass on."""

import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FAILED = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# Tables keep their shape where the output is not a terminal.
LOG_WIDTH = 120

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Command = Annotated[list[str], typer.Argument(help="The command, after --.", show_default=False)]


def application(**options: Any) -> typer.Typer:
    """A command, or with a help text a group of them. ``options``: those of `typer.Typer`."""
    options |= {"no_args_is_help": "help" in options}
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, **options)


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
    raise typer.Exit(FAILED) from error


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
