"""One rank's loop: receive a message, let the backend compute it, answer. No policy."""
