// What the loaded model can do, read from the server. The page offers nothing that is not listed there.

import { address, getJson } from "./api.js";

const NOT_LOADED = ["unloaded", "loading", "unloading", "failed"];

/** The server's models, and whether each is loaded. Aliases are left out. */
export async function listModels() {
  const { data = [] } = await getJson("v1/models");
  const own = data.filter((model) => !model.alias_of);
  return own.map((model) => ({ id: String(model.id), loaded: !NOT_LOADED.includes(model.state) }));
}

/**
 * One model: its name and capabilities; what the server leaves out, the model cannot do. An unloaded model is not
 * `known`: its capabilities are read once its first answer has loaded it.
 */
export async function loadModel(id) {
  const found = await getJson(`v1/models/${id.split("/").map(encodeURIComponent).join("/")}`);
  const raw = found.capabilities ?? {};
  const listed = raw.parameters ?? [];
  return {
    id,
    known: Boolean(found.capabilities) || !found.state,
    base: address("v1"),
    parameters: new Set(Array.isArray(listed) ? listed : Object.keys(listed).filter((name) => forChat(listed[name]))),
    defaults: plainDefaults(raw.defaults ?? found.defaults ?? {}),
    limits: raw.limits ?? {},
    contextLength: number(raw.context_length),
    maxConcurrency: number(raw.max_concurrency),
    chat: raw.chat !== false && raw.generation !== false,
    generation: raw.generation !== false,
    vision: raw.vision === true,
    tokens: raw.tokens === true,
    ends: new Set(Array.isArray(raw.eos_ids) ? raw.eos_ids : []),
  };
}

const forChat = (parameter) => !Array.isArray(parameter?.endpoints) || parameter.endpoints.includes("chat");

export const canLogprobs = (model) => model.parameters.has("logprobs") && limit(model, "max_logprobs", 20) > 0;

export const limit = (model, name, otherwise) => number(model.limits[name]) ?? otherwise;

/** A default may come alone or with its source: 0.7, {value: 0.7, source: ...} or ["model", 0.7]. */
function plainDefaults(defaults) {
  const plain = {};
  for (const [name, given] of Object.entries(defaults)) {
    plain[name] = Array.isArray(given) ? given.at(-1) : given && typeof given === "object" ? given.value : given;
  }
  return plain;
}

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
