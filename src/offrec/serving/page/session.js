// The session: items in the order in which they were clicked. Arrow keys move between them, Delete removes one.
import { byId, describeItem, element, moveFocus, nameOf } from "./dom.js";

export function createSession({ removeClick, clear }) {
  const list = byId("session"), clearButton = byId("clear"), emptyText = byId("session-empty");
  const buttons = () => [...list.querySelectorAll("button")];

  function createEntry(item, position, isLast) {
    const label = `Remove click ${position + 1}, ${describeItem(item)}${isLast ? ", the last click" : ""}`;
    const cross = element("span", { class: "cross", "aria-hidden": "true" }, "×");
    const text = element("span", { class: "id" }, nameOf(item));
    return element(
      "li",
      { class: isLast ? "last" : null },
      element(
        "button",
        { type: "button", "aria-label": label, title: describeItem(item), "data-position": position },
        text,
        cross,
      ),
    );
  }

  list.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) removeClick(Number(button.dataset.position));
  });
  list.addEventListener("keydown", (event) => {
    const button = event.target.closest("button");
    const offset = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (offset) moveFocus(buttons(), button, offset);
    else if (event.key === "Delete" || event.key === "Backspace") {
      const position = Number(button.dataset.position);
      removeClick(position);
      (buttons()[Math.min(position, buttons().length - 1)] ?? byId("search")).focus();
    } else return;
    event.preventDefault();
  });
  clearButton.addEventListener("click", () => {
    clear();
    byId("search").focus();
  });

  return function showSession(items) {
    list.replaceChildren(...items.map((item, position) => createEntry(item, position, position === items.length - 1)));
    list.scrollTop = list.scrollHeight;
    clearButton.hidden = items.length === 0;
    emptyText.hidden = items.length > 0;
  };
}
