"""The commands of the command line: one file each, imported only when called."""

from spherometer.commands.table import COMMANDS, Command

__all__ = ["COMMANDS", "Command"]
