// Puts the page together: the model, the conversation on screen, and the panels around it.

import { Chat, welcome } from "./chat.js";
import { CodePanel } from "./code.js";
import { Composer } from "./composer.js";
import { buildControls } from "./controls.js";
import { byId, h, toast } from "./elements.js";
import { askForKey } from "./key.js";
import { Layout } from "./layout.js";
import { limit, listModels, loadModel } from "./model.js";
import { LivePanel } from "./panel.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { followCard, hideCard } from "./tokens.js";

const SUGGESTIONS = [
  "Explain how a bicycle drivetrain works",
  "Write four lines about rain in spring",
  "List three unusual uses of a paper clip",
];

const settings = store.loadSettings();
let model = null;
let models = [];
let problem = "";
let warnedFull = false;
let wasBusy = false;

const chat = new Chat({
  thread: byId("thread"),
  list: byId("thread-inner"),
  model: () => model,
  settings: () => settings,
  welcome: greeting,
  changed: update,
  needKey: enterKey,
  away: (away) => (byId("jump").hidden = !away),
  full: () => {
    if (!warnedFull) toast("This browser's storage is full. Export and delete some conversations.");
    warnedFull = true;
  },
});
const composer = new Composer({
  send: (text, images) => Boolean(model) && chat.send(text, images),
  stop: () => chat.stop(),
  changed: () => code.draw(),
});
const sidebar = new Sidebar({ open, start, forget, current: () => chat.conversation?.id });
const live = new LivePanel(byId("panel-live"), () => model?.maxConcurrency);
const code = new CodePanel(byId("panel-code"), () =>
  model && chat.conversation ? { model, settings, conversation: chat.conversation, draft: composer.draft } : null,
);
const layout = new Layout({
  changed: showPanels,
  remember: (shown) => keep({ inspector: shown }),
  open: settings.inspector,
});

layout.start();
listen();
open(store.loadConversation(store.currentId()) ?? store.newConversation());
await connect();

/** Lists the models and reads the capabilities of the one chosen last, or else the first. */
async function connect() {
  problem = "";
  byId("model").replaceChildren(h("span", { class: "quiet" }, "Connecting…"));
  try {
    models = await listModels();
    if (!models.length) throw new Error("The server has no models.");
    await use((models.find(({ id }) => id === settings.model) ?? models[0]).id);
  } catch (error) {
    if (error.status === 401 && (await askForKey())) return connect();
    model = null;
    problem = error.status === 401 ? "The server requires an API key." : error.message;
    showModel();
  }
}

async function use(id) {
  model = await loadModel(id);
  showModel();
}

async function enterKey() {
  if (!(await askForKey())) return false;
  if (!model) await connect();
  return true;
}

function showModel() {
  byId("model").replaceChildren(...modelLine());
  document.title = model ? `${model.id} · Drivetrain` : "Drivetrain";
  composer.allow({
    enabled: Boolean(model?.chat),
    vision: Boolean(model?.vision),
    maxImages: model ? limit(model, "max_images", 16) : 0,
    placeholder: model?.chat ? `Message ${model.id}` : "Message",
  });
  drawSettings();
  if (!chat.conversation.messages.length) chat.redraw();
  update();
}

function modelLine() {
  if (!model) {
    const retry = h("button", { type: "button", class: "button small", onclick: connect }, "Try again");
    return [h("span", { class: "problem", role: "alert" }, problem), retry];
  }
  if (models.length === 1) return [h("span", { class: "model-name" }, model.id)];
  const select = h(
    "select",
    { "aria-label": "Model" },
    models.map((entry) => h("option", { value: entry.id }, titled(entry))),
  );
  select.value = model.id;
  select.addEventListener("focus", () => relist(select));
  select.addEventListener("change", () => {
    keep({ model: select.value });
    use(select.value).catch((error) => toast(error.message));
  });
  return [select];
}

function titled({ id, loaded }) {
  return loaded ? id : `${id} · not loaded`;
}

/** Models are loaded and unloaded without the page hearing of it. */
async function relist(select) {
  models = await listModels().catch(() => models);
  for (const option of select.options) {
    const entry = models.find(({ id }) => id === option.value);
    if (entry) option.textContent = titled(entry);
  }
}

function drawSettings() {
  const panel = byId("panel-settings");
  const area = h("textarea", { id: "system", rows: "3", placeholder: "You are a helpful assistant." });
  area.value = chat.conversation?.system ?? "";
  area.addEventListener("input", () => {
    chat.conversation.system = area.value;
    if (chat.conversation.messages.length) store.saveConversation(chat.conversation);
    code.draw();
  });
  const help = h(
    "p",
    { class: "help", id: "system-help" },
    "For this conversation only, from the next answer on.",
  );
  area.setAttribute("aria-describedby", "system-help");
  const system = h("div", { class: "field" }, h("label", { for: "system" }, "System prompt"), area, help);
  const controls = model ? buildControls(model, settings, () => (keep({}), code.draw())) : [];
  panel.replaceChildren(
    h("h2", { class: "visually-hidden" }, "Settings"),
    h("div", { class: "group" }, system),
    ...controls,
  );
}

function keep(changes) {
  Object.assign(settings, changes);
  store.saveSettings(settings);
}

function greeting() {
  if (model?.chat)
    return welcome(
      "What shall we talk about?",
      `${model.known ? `${model.id} is ready` : `${model.id} will be loaded by your first message`}. What you write stays between this browser and this server.`,
      SUGGESTIONS,
      (text) => chat.send(text),
    );
  if (model)
    return welcome(
      "This model cannot chat",
      model.generation
        ? "It completes plain prompts. Use /v1/completions."
        : "It produces embeddings, not text. Use /v1/embeddings.",
      [],
      null,
    );
  return welcome(problem ? "Not connected" : "One moment", problem || "Connecting to the server.", [], null);
}

function open(conversation) {
  chat.open(conversation);
  store.setCurrentId(conversation.id);
  drawSettings();
  update();
  layout.closeDrawer();
}

function start() {
  open(store.newConversation());
  byId("message").focus();
}

function forget(id) {
  chat.forget(id);
  if (chat.conversation?.id === id) open(store.newConversation());
}

function update() {
  if (wasBusy && !chat.busy && model && !model.known) use(model.id).catch(() => {});
  wasBusy = chat.busy;
  composer.setBusy(chat.busy);
  sidebar.draw();
  code.draw();
}

function showPanels() {
  live.show(layout.sees("live"));
  code.show(layout.sees("code"));
}

function listen() {
  byId("jump").addEventListener("click", () => chat.toEnd());
  store.onOtherTab(() => sidebar.draw());
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || byId("key-dialog").open) return;
    if (!byId("token-card").hidden) hideCard();
    else if (!layout.closeDrawer()) chat.stop();
  });
  addEventListener("scroll", followCard, { capture: true, passive: true });
}
