"""The ``dmlcomm`` command.

A command is imported when it is asked for: a parameter server starts in a fraction of a second, and
must not wait for what the lab needs.
"""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dmlcomm._shell import application

# Command -> where its typer application is.
COMMANDS = {
    "doctor": "dmlcomm.doctor_command:app",
    "inspect": "dmlcomm.inspect_command:app",
    "lab": "dmlcomm.lab.commands:app",
    "plan": "dmlcomm.planning.commands:app",
    "proxy": "dmlcomm.proxy.commands:app",
    "ps": "dmlcomm.ps.commands:app",
    "psnet": "dmlcomm.psnet.commands:app",
    "regroup": "dmlcomm.regroup.commands:app",
    "run": "dmlcomm.ps.run_command:app",
    "simulate": "dmlcomm.simulate.commands:app",
    "strategy": "dmlcomm.strategy.commands:app",
    "switch": "dmlcomm.prio.switch.commands:app",
    "top": "dmlcomm.inspect_command:top_app",
}


class _LazyGroup(TyperGroup):
    """Knows the names of its commands, and imports one when it is run or has to be described."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
        command.name = cmd_name
        return command


app = application(
    name="dmlcomm",
    cls=_LazyGroup,
    help="Communication for data-parallel training on machines with several NICs.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dmlcomm.doctor import version_of

        print(f"dmlcomm {version_of('dmlcomm')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
