"""The models of a node: weights and windows, but no rule."""

import threading
from typing import Any

from dmlcomm.ps._proto import dmlcomm_ps_pb2 as pb
from dmlcomm.ps.description import spec_of, why_not_by_proxy
from dmlcomm.ps.server import refusal
from dmlcomm.ps.server.models import Models
from dmlcomm.ps.server.rules import Rule


class NodeModels(Models):
    """As on a server; the rule stays there."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._clocks_lock = threading.Lock()
        self._bases: dict[int, int] = {}
        self._reached: dict[int, int] = {}

    def learn(self, number: int, base: int, reached: int) -> None:
        """Before the model is created: weights from above contain all clocks before `base`, and of
        clocks from `reached` on nothing that workers may repeat."""
        with self._clocks_lock:
            self._bases.setdefault(number, base)
            self._reached[number] = max(reached, self._reached.get(number, 0))

    def clocks_of(self, number: int) -> dict[str, int]:
        with self._clocks_lock:
            return {"base": self._bases[number], "reached": self._reached[number]}

    def show_own(self, number: int, description: Any) -> None:
        """Where updates are sums, pulls may show pushes on their way up."""
        if description.rule == "add" and description.reduce == "sum":
            self._core.show_own_from(number, self.clocks_of(number)["reached"])

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
        base = self.clocks_of(number)["base"]
        self._core.create_model(number, spec_of(without_rule), None, base)
