// One conversation in the list: its name, which can be changed there, and what can be done with it.

import { h, icon } from "./elements.js";

const MAX_TITLE_CHARS = 200;

/** `actions` are `open()`, `rename(title)`, `renaming(whether)`, `save()` and `remove()`. */
export function conversationItem(conversation, { current, excerpt, ...actions }) {
  const title = conversation.title || "New chat";
  const attributes = {
    type: "button",
    class: "open",
    title,
    dir: "auto",
    "data-name": `open ${conversation.id}`,
    "aria-current": current ? "true" : null,
    onclick: actions.open,
  };
  const open = h("button", attributes, title, excerpt ? h("span", { class: "excerpt" }, excerpt) : null);
  const name = `rename ${conversation.id}`;
  const rename = small("edit", `Rename “${title}”`, () => startRenaming(open, name, conversation.title, actions));
  rename.dataset.name = name;
  return h(
    "li",
    {},
    open,
    h(
      "span",
      { class: "item-tools" },
      rename,
      small("download", `Export “${title}”`, actions.save),
      small("trash", `Delete “${title}”`, actions.remove),
    ),
  );
}

function startRenaming(open, name, title, { rename, renaming }) {
  const input = h("input", { type: "text", class: "rename", "aria-label": "New name", maxlength: MAX_TITLE_CHARS });
  let over = false;
  const finish = (chosen) => {
    if (over) return;
    over = true;
    renaming(false);
    input.replaceWith(open);
    rename(chosen.trim() || title);
  };
  input.value = title;
  input.addEventListener("keydown", (event) => {
    if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
    event.preventDefault();
    event.stopPropagation();
    finish(event.key === "Enter" ? input.value : title);
    document.querySelector(`[data-name="${CSS.escape(name)}"]`)?.focus();
  });
  input.addEventListener("blur", () => finish(input.value));
  renaming(true);
  open.replaceWith(input);
  input.select();
  input.focus();
}

function small(name, label, run) {
  const attributes = { type: "button", class: "icon-button small", "aria-label": label, title: label, onclick: run };
  return h("button", attributes, icon(name));
}
