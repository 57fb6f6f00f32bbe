"""`penstock bench tiers`: measures the benefit of KV tiers by medium, prompt length and
bandwidth.
"""
