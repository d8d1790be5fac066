"""Exceptions. Every message says what was expected, what was given, and what to do."""


class KeysiftError(ValueError):
    """Base class of all errors that a caller can cause."""


class ShapeError(KeysiftError):
    """A tensor has the wrong rank or size."""


class RangeError(KeysiftError):
    """A number is outside its valid range."""


class ConfigError(KeysiftError):
    """A config has an unknown key, a missing key or a value of the wrong type."""


class UnknownNameError(KeysiftError):
    """A name is not registered."""


class UnsupportedError(KeysiftError):
    """A valid combination of settings is not supported."""


class DataError(KeysiftError):
    """Text, tokens or files are missing, damaged or of the wrong kind."""


class DisagreementError(KeysiftError):
    """A backend disagrees with the definition."""


class TrainingError(KeysiftError):
    """Training cannot continue: a non-finite loss, a checkpoint that cannot be written."""
