"""What ``dmlcomm ps status`` shows: asks the servers, and draws tables."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Group
from rich.table import Table

from dmlcomm import errors
from dmlcomm._shell import new_table
from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.worker.control import Control
from dmlcomm.units import format_bytes

Values = dict[str, Any]


def ask(controls: Sequence[Control]) -> list[Values]:
    """One answer per server; of one that does not answer, "error" says why."""
    answers: list[Values] = []
    for control in controls:
        try:
            answer = to_dict(control.call("Status", pb.StatusRequest()))
        except errors.PsError as error:
            answer = {"error": str(error)}
        answers.append({"address": control.address, **answer})
    return answers


def to_dict(message: Any) -> Values:
    """Every field as plain data. Numbers stay numbers, which they do not in JSON of proto3."""
    values: Values = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values[field.name] = dict(value)
        elif field.is_repeated:
            is_message = field.message_type is not None
            values[field.name] = [to_dict(item) if is_message else item for item in value]
        else:
            values[field.name] = value
    return values


def view(answers: Sequence[Values]) -> Group:
    """All servers in four tables; errors below."""
    answered = [answer for answer in answers if "error" not in answer]
    tables = [_servers(answers), _workers(answered), _models(answered), _rails(answered)]
    return Group(*(table for table in tables if table.row_count))


def _servers(answers: Sequence[Values]) -> Table:
    table = new_table("Servers", "server", "address", "up", "workers", "queue", "last checkpoint")
    for answer in answers:
        if "error" in answer:
            table.add_row("?", answer["address"], f"[red]{answer['error']}[/]", "", "", "")
            continue
        alive = sum(w["alive"] and not w["is_proxy"] for w in answer["workers"])
        table.add_row(
            f"{answer['server']} of {answer['num_servers']}",
            answer["address"],
            f"{answer['uptime_s']:.0f} s",
            f"{alive} of {answer['num_workers']}",
            str(answer["queue"]),
            _last_checkpoint(answer["checkpoints"]),
        )
    return table


def _last_checkpoint(checkpoints: Sequence[Values]) -> str:
    failing = [checkpoint for checkpoint in checkpoints if checkpoint["failure"]]
    if failing:
        return f"[red]{failing[0]['model']} cannot be written: {failing[0]['failure']}[/]"
    if not checkpoints:
        return "-"
    last = max(checkpoints, key=lambda checkpoint: float(checkpoint["unix_time"]))
    time = datetime.fromtimestamp(last["unix_time"]).strftime("%H:%M:%S")
    return f"{last['model']} at clock {last['clock']}, {time}"


def _workers(answers: Sequence[Values]) -> Table:
    table = new_table(
        "Workers", "worker", "host", "server", "clock", "state", "in", "out", "pushes", "pulls"
    )
    for answer in answers:
        for worker in answer["workers"]:
            lost = f"[red]lost: {worker['lost_reason']}[/]" if worker["lost_reason"] else "left"
            table.add_row(
                f"proxy {worker['worker']}" if worker["is_proxy"] else str(worker["worker"]),
                worker["host"] or "-",
                str(answer["server"]),
                str(worker["clock"]),
                "[green]alive[/]" if worker["alive"] else lost,
                format_bytes(worker["bytes_in"]),
                format_bytes(worker["bytes_out"]),
                str(worker["pushes"]),
                str(worker["pulls"]),
            )
    return table


def _models(answers: Sequence[Values]) -> Table:
    table = new_table("Shards", "model", "rule", "server", "shard", "size", "clock", "open")
    for answer in answers:
        for model in answer["models"]:
            rule = f"{model['rule']}, each {model['apply']}" if model["sealed"] else "no values yet"
            for shard in model["shards"]:
                is_copy = shard["shard"] != answer["server"]
                table.add_row(
                    model["name"],
                    rule,
                    str(answer["server"]),
                    f"{shard['shard']} (copy)" if is_copy else str(shard["shard"]),
                    format_bytes(shard["bytes"]),
                    str(model["clock"]),
                    str(model["open_windows"]),
                )
    return table


def _rails(answers: Sequence[Values]) -> Table:
    table = new_table("NICs", "server", "interface", "sent", "received", "sending", "receiving")
    for answer in answers:
        for rail in answer["rails"]:
            table.add_row(
                str(answer["server"]),
                rail["interface"],
                format_bytes(rail["bytes_sent"]),
                format_bytes(rail["bytes_received"]),
                f"{format_bytes(rail['sent_per_second'])}/s",
                f"{format_bytes(rail['received_per_second'])}/s",
            )
    return table
