"""The Python side's logger, "dmlcomm", at the level of ``DMLCOMM_LOG_LEVEL``."""

import functools
import logging

from dmlcomm import _core

LEVELS = ("error", "warning", "info", "debug")


@functools.cache
def get_logger() -> logging.Logger:
    """The logger. It writes to stderr, unless the application has set up logging itself."""
    logger = logging.getLogger("dmlcomm")
    if logger.level == logging.NOTSET:
        logger.setLevel(str(_core.config()["log_level"]).upper())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[dmlcomm %(levelname)s] %(message)s"))
        logger.addHandler(handler)
    return logger


def set_level(name: str) -> None:
    """Of the logger. Raises ValueError."""
    if name not in LEVELS:
        raise ValueError(f'log level "{name}"; expected one of {", ".join(LEVELS)}')
    get_logger().setLevel(name.upper())
