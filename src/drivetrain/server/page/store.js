// What the browser keeps: conversations, settings and theme in localStorage, the key in sessionStorage only.
// One entry per conversation, so that two tabs do not overwrite each other's.

import { grown } from "./tree.js";

const PREFIX = "drivetrain:";
const CONVERSATION = `${PREFIX}conversation:`;
const DRAFT = `${PREFIX}draft:`;

export function newConversation() {
  const now = Date.now();
  return { id: randomId(), title: "", system: "", created: now, updated: now, current: null, messages: [] };
}

/** All conversations, newest first. */
export function listConversations() {
  const found = [];
  for (const key of keys()) {
    if (!key.startsWith(CONVERSATION)) continue;
    const conversation = readConversation(key);
    if (conversation) found.push(conversation);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

export const loadConversation = (id) => readConversation(CONVERSATION + id);

/** False if the browser's storage is full even without the token probabilities of older answers. */
export function saveConversation(conversation) {
  if (write(CONVERSATION + conversation.id, conversation)) return true;
  for (const other of listConversations().reverse()) {
    if (other.id === conversation.id) continue;
    if (dropTokens(other)) write(CONVERSATION + other.id, other);
    if (write(CONVERSATION + conversation.id, conversation)) return true;
  }
  const slim = structuredClone(conversation);
  dropTokens(slim);
  return write(CONVERSATION + conversation.id, slim);
}

export function deleteConversation(id) {
  remove(CONVERSATION + id);
  remove(DRAFT + id);
}

/** Calls back when another tab has changed a conversation. */
export function onOtherTab(callback) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(CONVERSATION)) callback();
  });
}

export const currentId = () => read(`${PREFIX}current`);
export const setCurrentId = (id) => write(`${PREFIX}current`, id);

export const loadDraft = (key) => String(read(DRAFT + key) ?? "");
export const saveDraft = (key, text) => (text ? write(DRAFT + key, text) : remove(DRAFT + key));

/** What a new chat asks for beside the model's own values: nobody watches a loop to its end. */
export const OWN_VALUES = { max_repetitions: 40 };

export function loadSettings() {
  const fresh = { values: { ...OWN_VALUES }, tokens: true, inspector: true, unfolded: [], preset: "" };
  const settings = { ...fresh, ...read(`${PREFIX}settings`) };
  delete settings.values.response_format; // Of an older version of this page; now it belongs to a conversation.
  return settings;
}

export const saveSettings = (settings) => write(`${PREFIX}settings`, settings);

/** A list of `{ name, system, values }`. */
export function loadPresets() {
  const presets = read(`${PREFIX}presets`);
  return Array.isArray(presets) ? presets.filter((preset) => typeof preset?.name === "string" && preset.values) : [];
}

export const savePresets = (presets) => write(`${PREFIX}presets`, presets);

export function loadTheme() {
  try {
    return localStorage.getItem(`${PREFIX}theme`) ?? "system";
  } catch {
    return "system";
  }
}

export function saveTheme(theme) {
  try {
    localStorage.setItem(`${PREFIX}theme`, theme);
  } catch {
    // Storage is disabled; the theme lasts until the page is left.
  }
}

let keyWithoutStorage = "";

export function apiKey() {
  try {
    return sessionStorage.getItem(`${PREFIX}key`) ?? keyWithoutStorage;
  } catch {
    return keyWithoutStorage;
  }
}

export function setApiKey(key) {
  keyWithoutStorage = key;
  try {
    sessionStorage.setItem(`${PREFIX}key`, key);
  } catch {
    // Storage is disabled; the key lasts until the page is left.
  }
}

function readConversation(key) {
  const value = read(key);
  return typeof value?.id === "string" && Array.isArray(value.messages) ? grown(value) : null;
}

function dropTokens(conversation) {
  let dropped = false;
  for (const message of conversation.messages) {
    dropped ||= Boolean(message.tokens?.length);
    delete message.tokens;
  }
  return dropped;
}

function randomId() {
  // crypto.randomUUID is missing over plain http, except from this machine.
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function keys() {
  try {
    return Object.keys(localStorage);
  } catch {
    return [];
  }
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function remove(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    // Storage is disabled, so there is nothing to remove.
  }
}
