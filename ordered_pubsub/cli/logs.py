"""Logs of commands that run for long: one line for each message, as text or as JSON, on standard error."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

LEVELS = ("debug", "info", "warning", "error")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Let the user choose."""
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="what is logged at least (default: info)")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="default: text")


def start_logging(arguments: argparse.Namespace) -> None:
    """Log as the user has chosen."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-8s %(message)s")
    handler.setFormatter(JsonFormatter() if arguments.log_format == "json" else plain)
    logging.basicConfig(handlers=[handler], level=arguments.log_level.upper(), force=True)


class JsonFormatter(logging.Formatter):
    """For machines: an object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
