"""Manifests from a deployment plan: functions that return dicts, one file a kind."""
