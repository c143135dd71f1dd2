"""All bodies that the API's endpoints accept."""

from __future__ import annotations

from drivetrain.core.parameters import PARAMETERS
from drivetrain.server.parse.messages import COUNT, MESSAGES
from drivetrain.server.parse.ollama import (
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_PULL,
    OLLAMA_SHOW,
)
from drivetrain.server.parse.rerank import RERANK, SCORE
from drivetrain.server.parse.responses import RESPONSE
from drivetrain.server.parse.schema import ADMIN, CHAT, COMPLETION, DETOKENIZE, EMBEDDING, TOKENIZE

OLLAMA = (OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_SHOW, OLLAMA_PULL)
BODIES = (CHAT, COMPLETION, RESPONSE, MESSAGES, COUNT, *OLLAMA, EMBEDDING, RERANK, SCORE, TOKENIZE, DETOKENIZE, ADMIN)
NAMES = frozenset(PARAMETERS).union(*(body.fields for body in BODIES))
"""Every field that a request may name, and so every value that a metric's label may have."""
