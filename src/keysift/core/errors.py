"""The error family. Every message says what was expected, what came, and what to do."""


class KeysiftError(ValueError):
    """Anything a caller can cause. Catch this one to catch them all."""


class ShapeError(KeysiftError):
    """A tensor of the wrong rank or size."""


class RangeError(KeysiftError):
    """A number outside the range where the mathematics is defined."""


class ConfigError(KeysiftError):
    """A configuration with an unknown key, a missing key or a value of the wrong type."""


class UnknownNameError(KeysiftError):
    """A name nobody registered."""


class UnsupportedError(KeysiftError):
    """A combination that is understood but cannot be done."""


class DataError(KeysiftError):
    """Text, tokens or files that are missing, damaged or not what they claim to be."""


class DisagreementError(KeysiftError):
    """A fast path whose answers stray from the definition."""


class TrainingError(KeysiftError):
    """A run that cannot continue: a non-finite loss, a checkpoint that cannot be written."""
