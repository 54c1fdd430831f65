/** What a body may be, whatever transport it goes by: refused here where JSON would store something else. */

import {PushqError} from "./errors.js";

export function decodeBase64(text) {
  return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
}

export function encodeBody(body, {content_type = "application/octet-stream"}) {
  if (!isBytes(body)) return {body: body === undefined ? null : body};
  body = ArrayBuffer.isView(body) ? new Uint8Array(body.buffer, body.byteOffset, body.byteLength) : new Uint8Array(body);
  let binary = "";
  for (let at = 0; at < body.length; at += 0x8000) binary += String.fromCharCode(...body.subarray(at, at + 0x8000));
  return {body_base64: btoa(binary), content_type};
}

function isBytes(value) {
  return value instanceof ArrayBuffer || ArrayBuffer.isView(value);
}

/** Throws for what JSON would store as something else: `JSON.stringify` makes NaN `null` and bytes an object. What it
 * wrote tells quickly whether either can be in there. @param {string} text @param {any} body */
export function refuseUnfit(text, body) {
  refuseHalves(text);
  if (isBytes(body) || !/null|\{\}|\{"0":|"type":"Buffer"/.test(text)) return;
  JSON.stringify(body, function (key, value) {
    if (isBytes(this[key])) value = this[key]; // Node's Buffer says of itself what JSON is to make of it
    if (typeof value === "number" && !Number.isFinite(value)) {
      throw new PushqError("invalid-request", "NaN and infinity have no JSON representation; send null or a string instead");
    }
    if (isBytes(value)) {
      throw new PushqError(
        "invalid-request",
        "bytes inside a value have no JSON representation; send them as base64 text, or the whole body as bytes",
      );
    }
    return value;
  });
}

/** Throws for half a surrogate pair, which JSON writes as an escape: the server would close the connection for it. */
export function refuseHalves(text) {
  if (!/\\ud[89a-f]/.test(text) || !/\\ud[89a-f]/.test(text.replaceAll("\\\\", ""))) return;
  throw new PushqError("invalid-request", "the string contains an unpaired surrogate, such as half of an emoji");
}
