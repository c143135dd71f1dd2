"""Reads what a model's answer says: content, reasoning and tool calls, in whichever form the model writes them."""

from __future__ import annotations

from drivetrain.text.answers.parser import AnswerParser as AnswerParser
from drivetrain.text.answers.parser import parse_answer as parse_answer
from drivetrain.text.answers.table import FORMS as FORMS
