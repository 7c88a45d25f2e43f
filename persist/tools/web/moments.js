// Times that are moments.

// Exact, to the nanosecond: what a date of the browser holds ends at milliseconds.
export function momentOf(time, unit) {
  const digits = { s: 0, ms: 3, us: 6, ns: 9 }[unit];
  const second = 10n ** BigInt(digits), number = BigInt(time), ms = Number(number / second) * 1000;
  if (ms > 8.64e15) return "?";
  const fraction = String(number % second).padStart(digits, "0").replace(/0+$/, "");
  return `${new Date(ms).toISOString().slice(0, -5)}${digits && fraction ? `.${fraction}` : ""}Z`;
}
