// The field that finds items: a combobox. Arrows choose, Enter takes, Escape closes.
import * as api from "./api.js";
import { byId, element } from "./dom.js";

const PAUSE = 120; // milliseconds without a key before the server is asked

export function makeSearch({ policy, take, drop, failed }) {
  const input = byId("search"), list = byId("found"), said = byId("search-said");
  let chosen = -1, pause, running;

  const options = () => [...list.children];

  function choose(index) {
    chosen = index;
    options().forEach((option, at) => option.setAttribute("aria-selected", at === index));
    const option = options()[index];
    option?.scrollIntoView({ block: "nearest" });
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
  }

  function close() {
    clearTimeout(pause);
    running?.abort();
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    choose(-1);
  }

  function show(items) {
    list.replaceChildren(
      ...items.map((item, at) => element("li", { id: `found-${at}`, role: "option", "aria-selected": false, title: item }, item)),
    );
    list.hidden = items.length === 0;
    input.setAttribute("aria-expanded", String(items.length > 0));
    choose(items.length && input.value ? 0 : -1);
    list.scrollTop = 0;
    said.textContent = items.length ? "" : `No item has “${input.value}” in its id.`;
  }

  async function find() {
    running?.abort();
    const mine = (running = new AbortController());
    if (!policy()) return;
    try {
      const items = await api.items(input.value, policy(), mine.signal);
      if (!mine.signal.aborted) show(items);
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) return;
      close();
      failed(error);
    }
  }

  function pick(index) {
    const item = options()[index]?.textContent;
    if (item === undefined) return;
    input.value = "";
    close();
    take(item);
  }

  function keyed(event) {
    const open = !list.hidden, last = options().length - 1;
    if (event.key === "ArrowDown" && !open) find();
    else if (event.key === "ArrowDown") choose(chosen >= last ? 0 : chosen + 1);
    else if (event.key === "ArrowUp" && open) choose(chosen <= 0 ? last : chosen - 1);
    else if (event.key === "Enter" && open && chosen >= 0) pick(chosen);
    else if (event.key === "Escape" && (open || input.value)) {
      if (!open) input.value = "";
      said.textContent = "";
      close();
    } else if ((event.key === "Backspace" || event.key === "Delete") && !input.value) drop();
    else return;
    event.preventDefault();
  }

  input.addEventListener("input", () => {
    clearTimeout(pause);
    said.textContent = "";
    pause = setTimeout(find, PAUSE);
  });
  input.addEventListener("click", () => list.hidden && find());
  input.addEventListener("keydown", keyed);
  input.addEventListener("blur", close);
  list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
  list.addEventListener("click", (event) => pick(options().indexOf(event.target.closest("li"))));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input:not([type=radio], [type=checkbox]), select, textarea")) return;
    event.preventDefault();
    input.focus();
  });
}
