"""The loop of one rank: receive a message, let the backend compute it, answer. No policy."""
