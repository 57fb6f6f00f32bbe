"""Checks of one node: a file for each. A check has sources, and a pure function that judges what
they gave. Nothing here reads a file or runs a command.
"""
