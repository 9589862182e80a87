// The search field, a combobox: arrow keys select an item, Enter clicks it, Escape closes the list.
import * as api from "./api.js";
import { byId, describeItem, element, nameOf } from "./dom.js";

const TYPING_PAUSE_MS = 120; // time without a key press before a request is sent

export function createSearch({ getPolicy, clickItem, removeLastClick, showError }) {
  const input = byId("search"), list = byId("matches"), status = byId("search-status");
  let items = [], selected = -1, timer, request;

  const options = () => [...list.children];

  function select(index) {
    selected = index;
    options().forEach((option, position) => option.setAttribute("aria-selected", position === index));
    const option = options()[index];
    option?.scrollIntoView({ block: "nearest" });
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
  }

  function close() {
    clearTimeout(timer);
    request?.abort();
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    select(-1);
  }

  function show(matches) {
    items = matches;
    list.replaceChildren(
      ...items.map((item, position) => {
        const attributes = { id: `match-${position}`, role: "option", "aria-selected": false, title: describeItem(item) };
        return element("li", attributes, nameOf(item));
      }),
    );
    list.hidden = items.length === 0;
    input.setAttribute("aria-expanded", String(items.length > 0));
    select(items.length && input.value ? 0 : -1);
    list.scrollTop = 0;
    status.textContent = items.length ? "" : `No item id or title contains “${input.value}”.`;
  }

  async function find() {
    request?.abort();
    const mine = (request = new AbortController());
    if (!getPolicy()) return;
    try {
      const matches = await api.searchItems(input.value, getPolicy(), mine.signal);
      if (!mine.signal.aborted) show(matches);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      close();
      showError(error);
    }
  }

  function pick(index) {
    const item = items[index];
    if (item === undefined) return;
    input.value = "";
    close();
    clickItem(item);
  }

  function onKey(event) {
    const isOpen = !list.hidden, last = options().length - 1;
    if (event.key === "ArrowDown" && !isOpen) find();
    else if (event.key === "ArrowDown") select(selected >= last ? 0 : selected + 1);
    else if (event.key === "ArrowUp" && isOpen) select(selected <= 0 ? last : selected - 1);
    else if (event.key === "Enter" && isOpen && selected >= 0) pick(selected);
    else if (event.key === "Escape" && (isOpen || input.value)) {
      if (!isOpen) input.value = "";
      status.textContent = "";
      close();
    } else if ((event.key === "Backspace" || event.key === "Delete") && !input.value) removeLastClick();
    else return;
    event.preventDefault();
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    status.textContent = "";
    timer = setTimeout(find, TYPING_PAUSE_MS);
  });
  input.addEventListener("click", () => list.hidden && find());
  input.addEventListener("keydown", onKey);
  input.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // keeps the focus in the field
  list.addEventListener("click", (event) => pick(options().indexOf(event.target.closest("li"))));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input:not([type=radio], [type=checkbox]), select, textarea")) return;
    event.preventDefault();
    input.focus();
  });
}
