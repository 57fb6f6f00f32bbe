"""KV memory of one rank: pools of blocks, and the tiers behind them."""
