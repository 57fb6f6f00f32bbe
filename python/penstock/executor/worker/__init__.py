"""The loop of one rank: receive a message, let the backend compute it, send the answer. All
decisions are made by the engine.
"""
