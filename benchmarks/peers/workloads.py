"""The workloads: closed loops of random prompts, answered greedily and never cut short by EOS."""

from dataclasses import dataclass

SEED_BASE = 20_000


@dataclass(frozen=True)
class Workload:
    """Lengths are tokens; `concurrency` requests are open at any time until `prompts` are done."""

    name: str
    prefix: int
    prompt: int
    output: int
    concurrency: int
    prompts: int

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the whole run, shared prefix counted for each request."""
        return (self.prefix + self.prompt) * self.prompts

    def describe(self) -> str:
        """One phrase for a table heading."""
        shared = f"{self.prefix} shared + " if self.prefix else ""
        return (
            f"{shared}{self.prompt} tokens in, {self.output} out, "
            f"{self.concurrency} at a time, {self.prompts} requests"
        )

    def seed(self, repeat: int, attempt: int) -> int:
        """The same for every contender, new each time: no prefix cache remembers an earlier run."""
        return SEED_BASE + 1000 * int(self.name[1:]) + 10 * repeat + attempt


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", 0, 128, 128, 1, 10),
        Workload("W2", 0, 256, 128, 8, 48),
        Workload("W3", 0, 256, 128, 32, 96),
        Workload("W4", 0, 2048, 1, 1, 8),
        Workload("W5", 1024, 128, 64, 8, 32),
    )
}
# Run once after the start, not recorded: lazy initialisation and first compilation are not compared.
WARM_UP = (Workload("W8", 0, 64, 16, 4, 8), Workload("W9", 0, 512, 8, 2, 4))
