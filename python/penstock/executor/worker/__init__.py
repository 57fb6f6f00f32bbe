"""The loop of one rank: receive a message, let the backend compute it, answer. It decides nothing
itself.
"""
