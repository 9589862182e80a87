// The session: items in the order clicked. Arrows move among them, Delete takes one away.
import { byId, element, step } from "./dom.js";

export function makeSession({ remove, clear }) {
  const list = byId("session"), emptied = byId("clear"), nothing = byId("session-empty");
  const buttons = () => [...list.querySelectorAll("button")];

  function entry(item, at, last) {
    const label = `Remove click ${at + 1}, ${item}${last ? ", the last" : ""}`;
    const cross = element("span", { class: "cross", "aria-hidden": "true" }, "×");
    const text = element("span", { class: "id" }, item);
    return element(
      "li",
      { class: last ? "last" : null },
      element("button", { type: "button", "aria-label": label, title: item, "data-at": at }, text, cross),
    );
  }

  list.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) remove(Number(button.dataset.at));
  });
  list.addEventListener("keydown", (event) => {
    const button = event.target.closest("button"), by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (by) step(buttons(), button, by);
    else if (event.key === "Delete" || event.key === "Backspace") {
      const at = Number(button.dataset.at);
      remove(at);
      (buttons()[Math.min(at, buttons().length - 1)] ?? byId("search")).focus();
    } else return;
    event.preventDefault();
  });
  emptied.addEventListener("click", () => {
    clear();
    byId("search").focus();
  });

  return function show(items) {
    list.replaceChildren(...items.map((item, at) => entry(item, at, at === items.length - 1)));
    list.scrollTop = list.scrollHeight;
    emptied.hidden = items.length === 0;
    nothing.hidden = items.length > 0;
  };
}
