"""The CUDA graphs of a rank, and the choice of those that a step replays."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.backends.torch.layers.model import Model
from penstock.backends.torch.sampling.slots import DeviceSlots
from penstock.backends.torch.step.captures import Capture, Captures, Graph
from penstock.backends.torch.step.flash import FlashInfer
from penstock.backends.torch.step.graphs import DecodeGraphs
from penstock.backends.torch.step.prompt_graphs import PromptGraphs
from penstock.backends.torch.step.step import Step


@dataclass(slots=True)
class StepGraphs:
    """Graphs over one model and its KV pools. All fields are None on a rank that does not capture
    its steps.
    """

    decodes: DecodeGraphs | None = None
    prompts: PromptGraphs | None = None
    captures: Captures | None = None

    @classmethod
    def over(
        cls,
        model: Model,
        slots: DeviceSlots,
        tokens: int,
        flash: FlashInfer | None,
        capture: Capture,
    ) -> StepGraphs:
        """The graphs of steps of up to `tokens` tokens. With FlashInfer, steps with prompts use no
        graphs.
        """
        decodes = DecodeGraphs(model, slots, flash)
        if flash is not None:
            return cls(decodes, None, Captures(model, capture, [decodes]))
        prompts = PromptGraphs(model, slots, tokens)
        return cls(decodes, prompts, Captures(model, capture, [decodes, prompts]))

    def needed(self, step: Step) -> list[Graph]:
        """The graphs that the step replays; none if it is too large or has no graphs."""
        plan = step.plan
        if self.decodes is not None and self.decodes.takes(plan):
            return self.decodes.needed(plan, draws=step.only_tokens)
        if self.prompts is not None and self.prompts.takes(plan):
            return self.prompts.needed(plan, self.drawn(step))
        return []

    def drawn(self, step: Step) -> int:
        """Number of rows for which a graph samples tokens in a step with prompts; 0 if sampling is
        launched outside of graphs.
        """
        rows, prompts = len(step.draws.rows), self.prompts
        fits = prompts is not None and rows <= prompts.most_draws
        return rows if fits and step.plain_draws else 0

    def forget(self) -> None:
        """Drop all graphs now (`Captures.forget`)."""
        if self.captures is not None:
            self.captures.forget()
        self.decodes = self.prompts = self.captures = None
