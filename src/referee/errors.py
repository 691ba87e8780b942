"""The errors that Referee raises on purpose: one line each, saying what was wrong and what to do."""


class RefereeError(Exception):
    """Base of all expected errors; the command line prints it as one line and exits with code 2."""


MAX_LINE = 1000


def one_line(error: BaseException) -> str:
    """What an error says, in one line for a terminal: not endless, and without control characters out of a file."""
    text = " ".join(str(error).split())
    text = text if len(text) <= MAX_LINE else f"{text[: MAX_LINE - 300]} … {text[-300:]}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


class ConfigError(RefereeError):
    """A preset, a key or a value of the configuration is wrong."""


class ActionError(RefereeError, ValueError):
    """An action handed to an environment is not usable (shape, NaN, out of range)."""


class MissingDependency(RefereeError, ImportError):
    """A library or system package is missing; the message holds the line that installs it."""


class ClusterError(RefereeError):
    """A Ray cluster cannot be reached, or is not what the configuration says."""


class WorkerDied(RefereeError):
    """A worker's process ended, and the call under way must not be made twice."""


class TimedOut(RefereeError, TimeoutError):
    """Nobody answered in time."""


class ChannelClosed(RefereeError):
    """A channel will take and give nothing more."""
