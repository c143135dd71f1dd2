// What the chunks of a stream add to an answer.

import { addCalls } from "./parts.js";
import { compact } from "./tokens.js";

/** Adds a chunk of a chat, or of a completion that goes on with one. Tells whether it brought anything of the answer. */
export function take(message, chunk) {
  const choice = chunk.choices?.[0];
  const { content, reasoning_content: reasoning, tool_calls: calls = [] } = choice?.delta ?? { content: choice?.text };
  if (content) message.content += content;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (calls.length) message.calls = addCalls(message.calls ?? [], calls);
  const tokens = compact(choice?.logprobs);
  if (tokens.length) (message.tokens ??= []).push(...tokens);
  if (choice?.finish_reason) message.finish = choice.finish_reason;
  if (chunk.usage) message.usage = chunk.usage;
  return Boolean(content || reasoning || calls.length || tokens.length);
}

/** In characters, all that a message has. */
export const lengthOf = ({ content, reasoning = "", calls = [] }) =>
  calls.reduce((sum, { name, arguments: text }) => sum + name.length + text.length, content.length + reasoning.length);

/** Whether anything of the answer has come. */
export const hasBegun = ({ content, reasoning, calls }) => Boolean(content || reasoning || calls?.length);

/** How many tokens the answer has, those included that were there when it went on. */
export const counted = ({ usage, before = 0, tokens }) =>
  usage ? before + usage.completion_tokens : (tokens?.length ?? before);
