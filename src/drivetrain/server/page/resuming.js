// Going on with an answer: from its end, or with another token in place of one of its own. The server gets the same
// tokens again, so what was there before stays exactly as it was.

import { ApiError, postJson } from "./api.js";
import { resumingBody, toSend } from "./request.js";
import { counted } from "./stream.js";

/** Whether this answer can go on: it is text of this model, behind a conversation that is text. */
export function canResume(model, messages, { model: name, content, reasoning, calls, form, tokens }) {
  const isText = content && !calls?.length && form !== "json" && !messages.some(({ images }) => images?.length);
  return Boolean(model?.tokens && model.id === name && isText && (!reasoning || haveIds(tokens)));
}

const haveIds = (tokens) => Boolean(tokens?.length) && tokens.every(({ i }) => Number.isInteger(i));

/** The request that goes on behind `message`, which is already as it begins; `messages` are those before it. */
export async function resume(model, settings, conversation, messages, message, signal) {
  const prompt = { model: model.id, messages: toSend(conversation, messages) };
  const { tokens } = await postJson("tokenize", prompt, signal);
  const ids = [...tokens, ...(await idsOf(model, message, signal))];
  if (ids.length >= (model.contextLength ?? Infinity)) throw new ApiError("The model's context is full.", { code: "context_length_exceeded" });
  return { path: "v1/completions", body: resumingBody(model, settings, ids) };
}

async function idsOf(model, { content, tokens }, signal) {
  if (haveIds(tokens)) return tokens.map(({ i }) => i);
  const text = { model: model.id, prompt: content, add_special_tokens: false };
  return (await postJson("tokenize", text, signal)).tokens;
}

/** The beginning of another version of `message`: up to its end, or up to `place` and another token there. */
export function beginning(message, place = null, token = null) {
  const { model, content, reasoning, tokens = [] } = message;
  const begun = { role: "assistant", model, content, ...(reasoning ? { reasoning } : {}) };
  if (place === null) return { ...begun, tokens: [...tokens], before: counted(message) };
  const taken = { ...tokens[place], t: token.text, p: token.logprob, i: token.id, picked: true };
  delete taken.b;
  begun.content = content.slice(0, places(message)[place]) + token.text;
  return { ...begun, tokens: [...tokens.slice(0, place), taken], before: place + 1 };
}

/**
 * Where in the content each token begins; null if the answer cannot go another way there, because the token is part of
 * the reasoning, of a character, or of nothing that is shown.
 */
export function places({ tokens, content }) {
  const starts = [];
  let [text, pending] = ["", []];
  for (const { t, b } of tokens) {
    starts.push(pending.length ? null : text.length);
    pending = b ? [...pending, ...b] : [];
    const whole = b ? decoded(pending) : t;
    if (whole === null) continue;
    text += whole;
    pending = [];
  }
  const from = content ? text.lastIndexOf(content) : -1;
  let end = text.length + 1;
  for (let i = starts.length - 1; i >= 0; i--) {
    const start = starts[i];
    if (start === null) continue;
    starts[i] = from !== -1 && end > from ? Math.min(Math.max(0, start - from), content.length) : null;
    end = start;
  }
  return starts;
}

function decoded(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
  } catch {
    return null;
  }
}
