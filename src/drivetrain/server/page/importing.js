// Reads a file of conversations. It may come from anywhere: of each message only what this page knows is taken over.

import { grown } from "./tree.js";

/** The conversations in the text of a file that this page has exported. Throws an error for people to read. */
export function readConversations(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  const list = Array.isArray(found) ? found : (found?.conversations ?? [found]);
  const read = Array.isArray(list) ? list.map(conversation).filter(Boolean) : [];
  if (!read.length) throw new Error("This file has no conversations.");
  return read;
}

function conversation(found) {
  if (!Array.isArray(found?.messages)) return null;
  const messages = found.messages.map(message).filter(Boolean);
  if (!messages.length) return null;
  const when = (value) => (Number.isFinite(value) ? value : Date.now());
  return grown({
    id: isText(found.id) && /^[\w-]{1,64}$/.test(found.id) ? found.id : "",
    title: isText(found.title) ? found.title.slice(0, 200) : "",
    system: isText(found.system) ? found.system : "",
    ...(isForm(found.response_format) ? { response_format: found.response_format } : {}),
    created: when(found.created),
    updated: when(found.updated),
    current: found.current,
    messages,
  });
}

function message(found) {
  if (!["user", "assistant"].includes(found?.role) || !isText(found.content)) return null;
  const taken = { role: found.role, content: found.content };
  for (const [name, fits] of Object.entries(KNOWN)) {
    if (found[name] !== undefined && fits(found[name])) taken[name] = found[name];
  }
  return taken;
}

const isText = (value) => typeof value === "string";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const listOf = (fits) => (value) => Array.isArray(value) && value.length > 0 && value.every(fits);
const maybe = (fits) => (value) => value === null || value === undefined || fits(value);
const having = (fields) => (value) => isObject(value) && Object.entries(fields).every(([name, fits]) => fits(value[name]));

const isForm = having({
  type: (value) => value === "json_schema",
  json_schema: having({ name: isText, schema: isObject }),
});
const isAlternative = (value) => Array.isArray(value) && isText(value[0]) && maybe(isNumber)(value[1] ?? null);
const isToken = having({
  t: isText,
  p: maybe(isNumber),
  a: (value) => Array.isArray(value) && value.every(isAlternative),
  i: maybe(isCount),
  b: maybe(listOf(isCount)),
});

const KNOWN = {
  id: isCount,
  parent: maybe(isCount),
  next: isCount,
  model: isText,
  reasoning: isText,
  images: listOf((value) => isText(value) && /^data:image\/[\w.+-]+;base64,[\w+/=]*$/.test(value)),
  files: listOf(having({ name: isText, text: isText })),
  calls: listOf(having({ name: isText, arguments: isText })),
  tokens: listOf(isToken),
  usage: having({ completion_tokens: isCount, total_tokens: maybe(isCount) }),
  timing: having({ first: maybe(isNumber), rate: maybe(isNumber) }),
  before: isCount,
  pair: isCount,
  finish: isText,
  form: (value) => value === "json",
  stopped: (value) => value === true,
  error: having({ message: isText, retryAfter: maybe(isNumber) }),
};
