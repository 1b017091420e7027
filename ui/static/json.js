// JSON whose integers stay what they are. JavaScript's own are exact up to 2^53 only; larger ones become BigInt.

const NUMBERS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  const mark = marker(text);
  const kept = text.replace(NUMBERS, (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${mark}${token}"` : token));
  return JSON.parse(kept, (_, value) => (typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value));
}

export function show(value, indent) {
  const mark = marker("");
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `${mark}${each}` : each), indent);
  return text.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

// What no text begins with that it is used for.
function marker(text) {
  let mark;
  do mark = `integer-${Math.random().toString(36).slice(2)}:`; while (text.includes(mark));
  return mark;
}
