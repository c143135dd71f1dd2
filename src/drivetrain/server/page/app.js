// Puts the page together: the model, the conversation on screen, and the panels around it.

import { dismissCard, followCard } from "./card.js";
import { Chat } from "./chat.js";
import { CodePanel } from "./code.js";
import { Composer } from "./composer.js";
import { drawMeter } from "./context.js";
import { Drafts } from "./drafts.js";
import { byId, h, toast } from "./elements.js";
import { askForKey } from "./key.js";
import { Layout } from "./layout.js";
import { limit, listModels, loadModel } from "./model.js";
import { LivePanel } from "./panel.js";
import { SettingsPanel } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { path } from "./tree.js";
import { welcome } from "./welcome.js";

const settings = store.loadSettings();
const drafts = new Drafts();
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
  welcome: () => welcome(model, problem, (content) => send({ content })),
  changed: update,
  needKey: enterKey,
  away: (away) => (byId("jump").hidden = !away),
  full: () => {
    if (!warnedFull) toast("This browser's storage is full. Export and delete some conversations.");
    warnedFull = true;
  },
});
const composer = new Composer({
  send,
  stop: () => chat.stop(),
  changed: () => {
    drafts.keep(chat.conversation, composer.state);
    code.draw();
  },
});
const sidebar = new Sidebar({ open, start, forget, current: () => chat.conversation?.id, live: (id) => chat.live(id) });
const panel = new SettingsPanel(byId("panel-settings"), {
  settings,
  model: () => model,
  conversation: () => chat.conversation,
  changed: () => {
    keep({});
    code.draw();
  },
});
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
  panel.draw();
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

function keep(changes) {
  Object.assign(settings, changes);
  store.saveSettings(settings);
}

function send(draft) {
  const fresh = !chat.conversation.messages.length;
  if (!model || !chat.send(draft)) return false;
  if (fresh) drafts.begun();
  return true;
}

function open(conversation) {
  chat.open(conversation);
  composer.restore(drafts.of(chat.conversation));
  store.setCurrentId(conversation.id);
  panel.draw();
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
  drawMeter(path(chat.conversation), model?.contextLength);
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
    if (!dismissCard() && !layout.closeDrawer()) chat.stop();
  });
  addEventListener("scroll", followCard, { capture: true, passive: true });
}
