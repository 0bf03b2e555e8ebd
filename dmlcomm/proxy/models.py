"""The models of a node: weights and windows, but no rule."""

from typing import Any

from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.description import spec_of, why_not_by_proxy
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.rules import Rule


class NodeModels(Models):
    """As on a server; the rule stays there.

    Attributes:
        bases: by number; weights from above contain all clocks before. Known before the model is.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.bases: dict[int, int] = {}

    def rule_of(self, description: Any) -> Rule | None:
        return None

    def check(self, description: Any) -> None:
        """Raises Refusal for a model that cannot be added up."""
        if why := why_not_by_proxy(description):
            raise refusal.illegal(f"{why}; set DMLCOMM_PROXY=none for this job")

    def _create_in_core(self, number: int, description: Any) -> None:
        without_rule = pb.Model()
        without_rule.CopyFrom(description)
        without_rule.rule = "assign"
        without_rule.options.clear()
        base = self.bases.get(number, 0)
        self._core.create_model(number, spec_of(without_rule), None, base)
