// Create elements and format numbers.

// Example: element("button", { type: "button", class: "plain" }, "Clear")
export function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) created.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) created.setAttribute(name, value);
  }
  created.append(...children.filter((child) => child !== null && child !== undefined));
  return created;
}

export const byId = (id) => document.getElementById(id);

// Show control characters and direction marks as symbols: invisible, they could change how an id reads.
export const printable = (text) =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (char) => {
    const code = char.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "␡" : "�";
  });

const titles = new Map(); // item id → title, of all items that the server has named

export function rememberTitle(item, title) {
  if (title) titles.set(item, title);
}

// The name of an item on the page: its title, or its id if it has none.
export const nameOf = (item) => printable(titles.get(item) ?? item);

// The title and the id of an item.
export const describeItem = (item) => (titles.has(item) ? `${nameOf(item)} (${printable(item)})` : printable(item));

// Move the focus by `offset` within a list of elements.
export function moveFocus(elements, from, offset) {
  elements[elements.indexOf(from) + offset]?.focus();
}

const percentFormats = [1, 2, 3].map(
  (digits) => new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits }),
);

export function formatPercent(probability) {
  if (probability >= 0.1) return percentFormats[0].format(probability);
  if (probability >= 0.001) return percentFormats[1].format(probability);
  return probability >= 0.00001 ? percentFormats[2].format(probability) : probability > 0 ? "<0.001%" : "0%";
}

// Example: 2.9 × 10⁻⁷. It takes the logarithm, because the probability of a list can be too small for a number.
export function formatLogProbability(log) {
  const log10 = log / Math.LN10;
  if (log10 > -3) return formatPercent(Math.exp(log));
  let exponent = Math.floor(log10);
  let digits = (10 ** (log10 - exponent)).toFixed(1);
  if (digits === "10.0") [digits, exponent] = ["1.0", exponent + 1];
  return `${digits} × 10${[...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
}

export function formatRatio(ratio) {
  if (ratio >= 9.95) return `${ratio < 1000 ? Math.round(ratio) : ratio.toExponential(0).replace("e+", "e")}×`;
  return ratio >= 0.01 ? `${ratio.toFixed(ratio < 0.095 ? 2 : 1)}×` : "<0.01×";
}
