// Builds the request of a conversation, and writes it as curl and as Python.

import { apiKey } from "./store.js";
import { canLogprobs, limit } from "./model.js";

/** Fields that the `openai` client does not know: they go into `extra_body`. */
const EXTRA = new Set(["top_k", "min_p", "repetition_penalty", "min_tokens"]);
const ALTERNATIVES = 5;

/** The body of POST /v1/chat/completions for these messages of a conversation. */
export function buildBody(model, settings, conversation, messages) {
  const body = { model: model.id, messages: [] };
  if (conversation.system.trim()) body.messages.push({ role: "system", content: conversation.system });
  for (const message of answered(messages)) body.messages.push({ role: message.role, content: content(message) });
  for (const [name, value] of Object.entries(settings.values)) {
    if (model.parameters.has(name) && value !== null) body[name] = value;
  }
  body.stream = true;
  body.stream_options = { include_usage: true };
  if (settings.tokens && canLogprobs(model)) {
    body.logprobs = true;
    body.top_logprobs = Math.min(ALTERNATIVES, limit(model, "max_logprobs", 20));
  }
  return body;
}

/** Without the turns whose answer never began: many templates insist that user and assistant take turns. */
function answered(messages) {
  const failed = (message) => message?.role === "assistant" && !message.content;
  return messages.filter((message, i) => !failed(message) && !failed(messages[i + 1]));
}

function content(message) {
  if (!message.images?.length) return message.content;
  const images = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return message.content ? [...images, { type: "text", text: message.content }] : images;
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
