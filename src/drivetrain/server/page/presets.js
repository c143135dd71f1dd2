// Presets: a system prompt and the values of the settings, kept under a name in this browser.

import { byId, h, icon, toast } from "./elements.js";
import { loadPresets, OWN_VALUES, savePresets } from "./store.js";

const NONE = { name: "", system: "", values: OWN_VALUES };
const MAX_NAME_CHARS = 60;

/**
 * The row that chooses, saves and deletes presets. `made()` is the preset that the settings make now, `choose(preset)`
 * puts one in force, `named(name)` says which one the settings are now kept as.
 */
export function presetRow({ chosen = "", made, choose, named }) {
  const row = h("div", { class: "presets" });
  const draw = (current) => {
    const presets = loadPresets();
    const known = presets.find(({ name }) => name === current);
    row.replaceChildren(
      ...(presets.length ? [chooser(presets, known, (name) => choose(presets.find((p) => p.name === name) ?? NONE))] : []),
      saveButton(() => row.replaceChildren(nameForm(known?.name ?? "", made, done))),
      ...(known ? [deleteButton(known.name, () => done(""))] : []),
    );
  };
  const done = (name) => {
    named(name);
    draw(name);
    row.querySelector("select, button").focus();
  };
  draw(chosen);
  return row;
}

function chooser(presets, known, choose) {
  const options = [h("option", { value: "" }, "No preset"), ...presets.map(({ name }) => h("option", { value: name }, name))];
  const select = h("select", { id: "preset", "aria-label": "Preset", onchange: () => (choose(select.value), byId("preset").focus()) }, options);
  select.value = known?.name ?? "";
  return select;
}

function saveButton(start) {
  return h("button", { type: "button", class: "button quiet small", onclick: start }, "Save as preset…");
}

function deleteButton(name, done) {
  const remove = () => {
    savePresets(loadPresets().filter((preset) => preset.name !== name));
    done();
    toast("Preset deleted. Its settings stay as they are.");
  };
  const label = `Delete the preset “${name}”`;
  return h(
    "button",
    { type: "button", class: "icon-button small", "aria-label": label, title: label, onclick: remove },
    icon("trash"),
  );
}

function nameForm(name, made, done) {
  const input = h("input", { type: "text", "aria-label": "Name of the preset", maxlength: MAX_NAME_CHARS, placeholder: "Name" });
  input.value = name;
  const save = (event) => {
    event.preventDefault();
    const chosen = input.value.trim();
    if (!chosen) return done(name);
    const others = loadPresets().filter((preset) => preset.name !== chosen);
    const all = [...others, { name: chosen, ...structuredClone(made()) }];
    if (!savePresets(all.sort((a, b) => a.name.localeCompare(b.name)))) toast("This browser's storage is full.");
    done(chosen);
  };
  const form = h(
    "form",
    { class: "preset-form", onsubmit: save },
    input,
    h("button", { type: "submit", class: "button small" }, "Save"),
  );
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    done(name);
  });
  queueMicrotask(() => input.focus());
  return form;
}
