"""`penstock bench channels`: measures messages between processes over each control channel that
ranks can use.
"""
