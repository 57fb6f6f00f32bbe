"""Shared by the benchmark scripts: servers, clients, CPU accounting, facts about a run."""
