"""`penstock route`: routing decisions, replayed, explained and validated."""
