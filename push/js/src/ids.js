/** What tells messages and clients apart that nobody has named. */

/** Random bytes as hex: 128 bits for an id. `crypto.randomUUID` is missing on pages served without TLS. */
export function randomHex(bytes = 16) {
  const values = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(values, (value) => value.toString(16).padStart(2, "0")).join("");
}
