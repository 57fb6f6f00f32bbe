"""Communication with other ranks: sums within a stage, rows between stages."""
