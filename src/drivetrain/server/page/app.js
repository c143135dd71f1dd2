// Puts the page together: the model, the conversation on screen, and the panels around it.

import { dismissCard, followCard } from "./card.js";
import { Chat } from "./chat.js";
import { Chooser } from "./chooser.js";
import { CodePanel } from "./code.js";
import { Composer } from "./composer.js";
import { drawMeter } from "./context.js";
import { Drafts } from "./drafts.js";
import { byId, toast } from "./elements.js";
import { Heartbeat } from "./heartbeat.js";
import { drawInForce } from "./in-force.js";
import { askForKey } from "./key.js";
import { Layout } from "./layout.js";
import { limit, loadModel } from "./model.js";
import { LivePanel } from "./panel.js";
import { SettingsPanel } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { path } from "./tree.js";
import { welcome } from "./welcome.js";

const settings = store.loadSettings();
const drafts = new Drafts();
let model = null;
let second = null;
let problem = "";
let warnedFull = false;
let wasBusy = false;
let meterFrame = 0;

const chat = new Chat({
  thread: byId("thread"),
  list: byId("thread-inner"),
  models: () => [model, ...(second?.chat ? [second] : [])],
  settings: () => settings,
  welcome: () => welcome(model, problem, (content) => send({ content })),
  changed: update,
  grew: () => {
    heartbeat.heard();
    meterFrame ||= requestAnimationFrame(() => ((meterFrame = 0), showMeter()));
  },
  needKey: enterKey,
  start,
  showSetting,
  away: (away) => (byId("jump").hidden = !away),
  full: () => {
    if (!warnedFull) toast("This browser's storage is full. Export and delete some conversations.");
    warnedFull = true;
  },
});
const chooser = new Chooser(byId("model"), {
  use: (id) => {
    keep({ model: id });
    use(id).catch((error) => toast(error.message));
  },
  useSecond: (id) => useSecond(id).catch((error) => toast(error.message)),
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
    showInForce();
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

const heartbeat = new Heartbeat({ model: () => model?.id, changed: serverIs });

layout.start();
listen();
heartbeat.start();
open(store.loadConversation(store.currentId()) ?? store.newConversation());
await connect();

/** Lists the models and reads the capabilities of the one chosen last, or else the first; of the second one too. */
async function connect() {
  problem = "";
  chooser.showQuiet("Connecting…");
  try {
    const ids = await chooser.list();
    if (!ids.length) throw new Error("The server has no models.");
    const known = ids.includes(settings.second) && ids.length > 1;
    second = known ? await loadModel(settings.second).catch(() => null) : null;
    await use(ids.includes(settings.model) ? settings.model : ids[0]);
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

/** Answers come from this model too, beside those of the first; none if the id is empty. */
async function useSecond(id) {
  keep({ second: id });
  second = id ? await loadModel(id) : null;
  showModel();
}

async function enterKey() {
  if (!(await askForKey())) return false;
  if (!model) await connect();
  return true;
}

function showModel() {
  if (model) chooser.show(model.id, second?.id);
  else chooser.showProblem(problem, connect);
  document.title = model ? `${model.id} · Drivetrain` : "Drivetrain";
  composer.allow({
    enabled: Boolean(model?.chat),
    vision: Boolean(model?.vision),
    maxImages: model ? limit(model, "max_images", 16) : 0,
    placeholder: model?.chat ? `Message ${model.id}${second ? ` and ${second.id}` : ""}` : "Message",
  });
  panel.draw();
  if (!chat.conversation.messages.length) chat.redraw();
  update();
}

/** What the dots say. A server that is back may be another one. */
function serverIs(found, before) {
  chooser.showState(found);
  live.showState(found);
  if (found.state !== "ready" || before.state !== "error" || chat.busy) return;
  if (!model) return connect();
  chooser.list().then((ids) => ids.includes(model.id) || connect(), () => {});
}

/** Leads to a setting of the model, its group unfolded. */
function showSetting(name) {
  layout.showSettings();
  const control = byId(`control-${name}`);
  control.closest("details").open = true;
  control.focus();
}

function showInForce() {
  const drop = () => {
    panel.dropForm();
    byId("message").focus();
  };
  drawInForce(model, chat.conversation, { open: () => showSetting("response_format"), drop });
}

function showMeter() {
  drawMeter(path(chat.conversation), model?.contextLength);
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
  if (wasBusy && !chat.busy && second && !second.known) useSecond(second.id).catch(() => {});
  wasBusy = chat.busy;
  composer.setBusy(chat.busy);
  sidebar.draw();
  code.draw();
  showMeter();
  showInForce();
}

function showPanels() {
  live.show(layout.sees("live"));
  code.show(layout.sees("code"));
}

function listen() {
  byId("jump").addEventListener("click", () => chat.toEnd());
  store.onOtherTab(() => sidebar.draw());
  addEventListener("keydown", (event) => {
    if (event.isComposing || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && !dismissCard() && !layout.closeDrawer()) chat.stop();
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const shortcut = { "?": () => byId("shortcuts").showModal(), "/": () => byId("message").focus() }[event.key];
    if (shortcut) (event.preventDefault(), shortcut());
  });
  addEventListener("scroll", followCard, { capture: true, passive: true });
}
