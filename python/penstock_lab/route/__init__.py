"""`penstock route`: the choice of replicas, replayed, explained and checked."""
