"""`penstock chat`: a conversation in the terminal, with a given server or with a server that the
command starts.
"""

from penstock.cli.chat.command import add_arguments, run

__all__ = ["add_arguments", "run"]
