"""Llama 3 to 3.3: a header names the speaker (Meta's model cards). No system text unless the caller has one."""

from __future__ import annotations

from drivetrain.families.base import Roles
from drivetrain.families.marked import MarkedTurns


class Llama3(MarkedTurns):
    name = "llama3"
    roles = Roles(system="system", user="user", assistant="assistant")
    before_role = "<|start_header_id|>"
    after_role = "<|end_header_id|>\n\n"
    separator = "<|eot_id|>"
    stop_tokens = ("<|eot_id|>", "<|end_of_text|>")
    name_patterns = (r"llama-?3.*(instruct|chat)",)
