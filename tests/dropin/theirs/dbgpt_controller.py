"""Runs in DB-GPT's environment: its controller on the port that is given.

Its own way to start it reads a file, and needs the packages of its whole application for that.
"""

import sys

from dbgpt.model.cluster.controller.controller import (  # type: ignore[import-not-found] # not in our environment
    EmbeddedModelRegistry,
    initialize_controller,
)
from dbgpt.model.parameter import ModelControllerParameters  # type: ignore[import-not-found] # as above

initialize_controller(
    registry=EmbeddedModelRegistry(),
    controller_params=ModelControllerParameters(host="127.0.0.1", port=int(sys.argv[1])),
)
