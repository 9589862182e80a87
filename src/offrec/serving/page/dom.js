// element("button", { type: "button", class: "plain" }, "Clear")
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

// Arrow keys move among what `all` gives; true if there was somewhere to go.
export function step(all, from, by) {
  const next = all[all.indexOf(from) + by];
  next?.focus();
  return next !== undefined;
}

const percents = [1, 2, 3].map(
  (digits) => new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits }),
);

export function percent(share) {
  if (share >= 0.1) return percents[0].format(share);
  if (share >= 0.001) return percents[1].format(share);
  return share >= 0.00001 ? percents[2].format(share) : share > 0 ? "<0.001%" : "0%";
}

// 2.9 × 10⁻⁷, from its logarithm: a list's probability may be smaller than any number a computer holds.
export function chance(log) {
  const ten = log / Math.LN10;
  if (ten > -3) return percent(Math.exp(log));
  let power = Math.floor(ten);
  let digits = (10 ** (ten - power)).toFixed(1);
  if (digits === "10.0") [digits, power] = ["1.0", power + 1];
  return `${digits} × 10${[...String(power)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
}

export function times(ratio) {
  if (ratio >= 9.95) return `${ratio < 1000 ? Math.round(ratio) : ratio.toExponential(0).replace("e+", "e")}×`;
  return ratio >= 0.01 ? `${ratio.toFixed(ratio < 0.095 ? 2 : 1)}×` : "<0.01×";
}
