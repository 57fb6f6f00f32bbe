"""`penstock bench tiers`: what KV tiers give, by medium, prompt length and bandwidth."""
