// What the loaded model can do, read from the server. Nothing on the page is offered that is not listed there.

import { address, getJson } from "./api.js";

const NOT_LOADED = ["unloaded", "loading", "unloading", "failed"];

/** The models that the server offers, each with whether it is loaded. Other names of the same models are left out. */
export async function listModels() {
  const { data = [] } = await getJson("v1/models");
  const own = data.filter((model) => !model.alias_of);
  return own.map((model) => ({ id: String(model.id), loaded: !NOT_LOADED.includes(model.state) }));
}

/**
 * One model: its name and capabilities, with what the server left out filled in as "cannot". One that is not loaded is
 * not `known`: what it can do is told once its first answer has loaded it.
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
  };
}

const forChat = (parameter) => !Array.isArray(parameter?.endpoints) || parameter.endpoints.includes("chat");

export const canLogprobs = (model) => model.parameters.has("logprobs") && limit(model, "max_logprobs", 20) > 0;

export const limit = (model, name, otherwise) => number(model.limits[name]) ?? otherwise;

/** A default may come bare or with its source: 0.7, {value: 0.7, source: ...} or ["model", 0.7]. */
function plainDefaults(defaults) {
  const plain = {};
  for (const [name, given] of Object.entries(defaults)) {
    plain[name] = Array.isArray(given) ? given.at(-1) : given && typeof given === "object" ? given.value : given;
  }
  return plain;
}

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
