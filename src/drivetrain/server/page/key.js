// Asks for the API key when the server requires one.

import { getJson } from "./api.js";
import { byId } from "./elements.js";
import { apiKey, setApiKey } from "./store.js";

let asking = null;

/** True once there is a key that the server accepts, false if the user declined. */
export function askForKey() {
  asking ??= ask().finally(() => (asking = null));
  return asking;
}

function ask() {
  const [dialog, form, input, error] = ["key-dialog", "key-form", "key", "key-error"].map(byId);
  const listeners = new AbortController();
  const showError = (text) => {
    error.hidden = !text;
    error.textContent = text;
  };
  input.value = "";
  showError(apiKey() ? "The server no longer accepts the key of this tab." : "");
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const finish = (given) => {
      listeners.abort();
      input.value = "";
      dialog.close();
      resolve(given);
    };
    const on = (target, event, listener) => target.addEventListener(event, listener, { signal: listeners.signal });
    on(byId("key-cancel"), "click", () => finish(false));
    on(dialog, "cancel", (event) => (event.preventDefault(), finish(false)));
    on(form, "submit", async (event) => {
      event.preventDefault();
      const why = await refused(input.value.trim());
      if (why) showError(why);
      else finish(true);
    });
  });
}

/** Why this key cannot be used; empty if it can, and it is then kept. */
async function refused(key) {
  if (!key) return "Enter the key first.";
  if (/[^!-~]/.test(key)) return "This is not a key: it has a space, or a sign that no key has.";
  const before = apiKey();
  setApiKey(key);
  try {
    await getJson("v1/models");
    return "";
  } catch (error) {
    setApiKey(error.status === 401 ? "" : before);
    return error.message;
  }
}
