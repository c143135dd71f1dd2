// The switch between the versions of a message: ‹ 2/3 ›. There is none if there is only one.

import { h, icon } from "./elements.js";

/** `turn(message)` shows the branch of another version. */
export function versionSwitch(all, message, turn) {
  if (all.length < 2) return [];
  const at = all.indexOf(message);
  const step = (name, label, to) =>
    h(
      "button",
      {
        type: "button",
        class: `tool to-${name}`,
        "aria-label": label,
        "aria-disabled": to ? null : "true",
        onclick: () => to && turn(to, name),
      },
      icon(name),
    );
  return [
    h(
      "span",
      { class: "versions", role: "group", "aria-label": `Version ${at + 1} of ${all.length}` },
      step("previous", "Previous version", all[at - 1]),
      h("span", { "aria-hidden": "true" }, `${at + 1}/${all.length}`),
      step("next", "Next version", all[at + 1]),
    ),
  ];
}
