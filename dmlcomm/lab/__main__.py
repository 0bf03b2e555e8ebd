"""``python -m dmlcomm.lab``: ``dmlcomm lab`` without what other commands import."""

from dmlcomm.lab.commands import app

app(prog_name="dmlcomm lab")
