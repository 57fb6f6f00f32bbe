"""`penstock bench channels`: messages between processes, through each control channel that ranks
can have.
"""
