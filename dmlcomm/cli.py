"""The ``dmlcomm`` command.

A command is imported when it is asked for: a parameter server starts in a fraction of a second, and
must not wait for what the lab needs.
"""

import importlib
from typing import Any

import click

from dmlcomm._shell import Group

# Command -> where it is.
COMMANDS = {
    "doctor": "dmlcomm.doctor_command:doctor",
    "inspect": "dmlcomm.inspect_command:inspect",
    "lab": "dmlcomm.lab.commands:app",
    "plan": "dmlcomm.planning.commands:plan",
    "proxy": "dmlcomm.proxy.commands:app",
    "ps": "dmlcomm.ps.commands:app",
    "psnet": "dmlcomm.psnet.commands:app",
    "regroup": "dmlcomm.regroup.commands:regroup",
    "run": "dmlcomm.ps.run_command:run",
    "simulate": "dmlcomm.simulate.commands:simulate",
    "strategy": "dmlcomm.strategy.commands:strategy",
    "switch": "dmlcomm.prio.switch.commands:app",
    "top": "dmlcomm.inspect_command:top",
}


class _LazyGroup(Group):
    """Knows the names of its commands, and imports one when it is run or has to be described."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


def _print_version(ctx: click.Context, _: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from dmlcomm.doctor import version_of

        print(f"dmlcomm {version_of('dmlcomm')}")
        ctx.exit()


@click.group("dmlcomm", cls=_LazyGroup)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def app() -> None:
    """Communication for data-parallel training on machines with several NICs."""


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
