"""All bodies that the API's endpoints accept."""

from __future__ import annotations

from drivetrain.core.parameters import PARAMETERS
from drivetrain.server.parse.messages import COUNT, MESSAGES
from drivetrain.server.parse.rerank import RERANK, SCORE
from drivetrain.server.parse.responses import RESPONSE
from drivetrain.server.parse.schema import ADMIN, CHAT, COMPLETION, DETOKENIZE, EMBEDDING, TOKENIZE

BODIES = (CHAT, COMPLETION, RESPONSE, MESSAGES, COUNT, EMBEDDING, RERANK, SCORE, TOKENIZE, DETOKENIZE, ADMIN)
NAMES = frozenset(PARAMETERS).union(*(body.fields for body in BODIES))
"""Every field that a request may name, and so every value that a metric's label may have."""
