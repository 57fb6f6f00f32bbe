"""What the benchmark scripts share: servers, clients, CPU accounting, facts about a run."""
