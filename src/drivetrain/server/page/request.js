// Builds the request of a conversation, and writes it as curl and as Python.

import { apiKey } from "./store.js";
import { quotedFile } from "./files.js";
import { canLogprobs, limit } from "./model.js";

/** Fields that the `openai` client does not know: they go into `extra_body`. */
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty", "max_repetitions", "min_tokens", "return_token_ids"]);
const ALTERNATIVES = 5;

/** The body of POST /v1/chat/completions for these messages of a conversation. */
export function buildBody(model, settings, conversation, messages) {
  const body = { model: model.id, messages: toSend(conversation, messages), ...sampling(model, settings) };
  const { response_format: form } = conversation;
  if (form && model.parameters.has("response_format")) body.response_format = form;
  if (showsTokens(model, settings)) {
    body.logprobs = true;
    body.top_logprobs = alternatives(model);
    if (model.tokens) body.return_token_ids = true;
  }
  return body;
}

/** The body of POST /v1/completions that goes on behind these tokens: a prompt, and an answer so far. */
export function resumingBody(model, settings, ids) {
  const values = sampling(model, settings);
  const room = (model.contextLength ?? Infinity) - ids.length;
  const longest = Math.min(values.max_tokens ?? room, room);
  const body = { model: model.id, prompt_token_ids: ids, ...values, return_token_ids: true };
  if (Number.isFinite(longest)) body.max_tokens = Math.max(1, longest);
  if (showsTokens(model, settings)) body.logprobs = alternatives(model);
  return body;
}

/** The messages as the server takes them, the system prompt first. */
export function toSend(conversation, messages) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...answered(messages).map((message) => ({ role: message.role, content: content(message) }))];
}

function sampling(model, settings) {
  const values = Object.entries(settings.values).filter(([name, value]) => model.parameters.has(name) && value !== null);
  return { ...Object.fromEntries(values), stream: true, stream_options: { include_usage: true } };
}

const showsTokens = (model, settings) => settings.tokens && canLogprobs(model);
const alternatives = (model) => Math.min(ALTERNATIVES, limit(model, "max_logprobs", 20));

/** Without the turns whose answer never began: many templates insist that user and assistant take turns. */
function answered(messages) {
  const failed = (message) => message?.role === "assistant" && !message.content;
  return messages.filter((message, i) => !failed(message) && !failed(messages[i + 1]));
}

function content({ content: written, images = [], files = [] }) {
  const text = [...files.map(quotedFile), ...(written ? [written] : [])].join("\n\n");
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** A line for a shell. The body goes in through a quoted here-document: nothing in it needs escaping. */
export function asCurl(model, body) {
  const lines = [`curl -N ${shellQuoted(`${model.base}/chat/completions`)} \\`];
  lines.push("  -H 'Content-Type: application/json' \\");
  if (apiKey()) lines.push('  -H "Authorization: Bearer $DRIVETRAIN_API_KEY" \\');
  lines.push("  --data-binary @- <<'JSON'", JSON.stringify(body, null, 2), "JSON");
  return lines.join("\n");
}

/** A script for the official client. */
export function asPython(model, body) {
  const { extra, known } = split(body);
  const key = apiKey() ? 'os.environ["DRIVETRAIN_API_KEY"]' : '"unused"';
  const call = Object.entries(known).map(([name, value]) => `    ${name}=${python(value, 1)},`);
  if (Object.keys(extra).length) call.push(`    extra_body=${python(extra, 1)},`);
  return [
    ...(apiKey() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(model.base)}, api_key=${key})`,
    "",
    "stream = client.chat.completions.create(",
    ...call,
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "print()",
  ].join("\n");
}

/** The same text for display, with image data cut short. */
export const shortened = (text) => text.replace(/(data:image\/[\w.+-]+;base64,[\w+/]{24})[\w+/=]{40,}/g, "$1…");

function split(body) {
  const [extra, known] = [{}, {}];
  for (const [name, value] of Object.entries(body)) (EXTRA.has(name) ? extra : known)[name] = value;
  return { extra, known };
}

const shellQuoted = (text) => (/^[\w:/.\-@%+[\]]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function python(value, level = 0) {
  const [pad, end] = ["    ".repeat(level + 1), "    ".repeat(level)];
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((item) => python(item, level + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, level + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${entries.join(", ")}${close}`;
  if (line.length + pad.length < 100 && !line.includes("\n")) return line;
  return `${open}\n${entries.map((entry) => `${pad}${entry},\n`).join("")}${end}${close}`;
}
