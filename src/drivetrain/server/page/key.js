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
  showError(apiKey() ? "The server rejected the last key." : "");
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
      if (!input.value.trim()) return showError("Enter the key first.");
      setApiKey(input.value.trim());
      const why = await refused();
      if (why) showError(why);
      else finish(true);
    });
  });
}

async function refused() {
  try {
    await getJson("v1/models");
    return "";
  } catch (error) {
    return error.message;
  }
}
