"""Shared code of the benchmark scripts: servers, clients, CPU accounting, facts about a run."""
