// Does an answer keep the form that was asked for? JSON Schema (2020-12 and the older spellings, without remote
// references and `format`) and regular expressions, checked here in the browser, apart from what the server enforced.

const typeOf = (v) => v === null ? "null" : Array.isArray(v) ? "array" : typeof v === "number" ? (Number.isInteger(v) ? "integer" : "number") : typeof v;
const same = (a, b) => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));
const sorted = (v) => Array.isArray(v) ? v.map(sorted)
  : v && typeof v === "object" ? Object.fromEntries(Object.keys(v).sort().map((k) => [k, sorted(v[k])])) : v;

function resolve(root, ref) {
  if (ref === "#") return root;
  if (!ref.startsWith("#/")) return undefined;
  return ref.slice(2).split("/").reduce((at, part) => at?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

// The first violation as text, null when there is none.
export function violation(value, schema, root = schema, path = "$", depth = 0) {
  if (schema === true || schema === undefined) return null;
  if (schema === false) return `${path}: nothing is allowed here`;
  if (depth > 200) return `${path}: nested too deeply to check`;
  const sub = (v, s, p = path) => violation(v, s, root, p, depth + 1);
  if (schema.$ref !== undefined) {
    const target = resolve(root, schema.$ref);
    if (target === undefined) return `${path}: ${schema.$ref} is not in the schema`;
    const found = sub(value, target);
    if (found) return found;
  }
  const kind = typeOf(value);
  if (schema.type !== undefined) {
    const types = [].concat(schema.type);
    if (!types.some((t) => t === kind || (t === "number" && kind === "integer"))) return `${path}: expected ${types.join(" or ")}, found ${kind}`;
  }
  if (schema.const !== undefined && !same(value, schema.const)) return `${path}: expected ${JSON.stringify(schema.const)}`;
  if (schema.enum && !schema.enum.some((e) => same(value, e))) return `${path}: ${JSON.stringify(value)} is none of the allowed values`;
  return combined(value, schema, sub, path) ?? numbers(value, schema, path) ?? strings(value, schema, path) ??
    arrays(value, schema, sub, path) ?? objects(value, schema, sub, path);
}

function combined(value, schema, sub, path) {
  for (const s of schema.allOf ?? []) {
    const found = sub(value, s);
    if (found) return found;
  }
  if (schema.anyOf && !schema.anyOf.some((s) => !sub(value, s))) return `${path}: fits none of anyOf`;
  if (schema.oneOf) {
    const n = schema.oneOf.filter((s) => !sub(value, s)).length;
    if (n !== 1) return `${path}: fits ${n} of oneOf, expected exactly one`;
  }
  if (schema.not !== undefined && !sub(value, schema.not)) return `${path}: fits what is excluded`;
  if (schema.if !== undefined) return sub(value, sub(value, schema.if) ? schema.else : schema.then);
  return null;
}

function numbers(value, s, path) {
  if (typeof value !== "number") return null;
  if (value < s.minimum || value <= s.exclusiveMinimum) return `${path}: ${value} is too small`;
  if (value > s.maximum || value >= s.exclusiveMaximum) return `${path}: ${value} is too large`;
  if (s.multipleOf && Math.abs(value / s.multipleOf - Math.round(value / s.multipleOf)) > 1e-9) return `${path}: ${value} is no multiple of ${s.multipleOf}`;
  return null;
}

function strings(value, s, path) {
  if (typeof value !== "string") return null;
  const length = [...value].length;
  if (length < s.minLength || length > s.maxLength) return `${path}: a string of length ${length}`;
  if (s.pattern !== undefined) {
    try {
      if (!new RegExp(s.pattern, "u").test(value)) return `${path}: does not match ${s.pattern}`;
    } catch { return null; /* a pattern of another dialect */ }
  }
  return null;
}

function arrays(value, s, sub, path) {
  if (!Array.isArray(value)) return null;
  if (value.length < s.minItems || value.length > s.maxItems) return `${path}: ${value.length} items`;
  if (s.uniqueItems && new Set(value.map((v) => JSON.stringify(sorted(v)))).size !== value.length) return `${path}: items repeat`;
  const first = s.prefixItems ?? (Array.isArray(s.items) ? s.items : []);
  const rest = s.prefixItems ? s.items : Array.isArray(s.items) ? s.additionalItems : s.items;
  for (const [i, v] of value.entries()) {
    const found = sub(v, i < first.length ? first[i] : rest, `${path}[${i}]`);
    if (found) return found;
  }
  if (s.contains !== undefined && !value.some((v) => !sub(v, s.contains))) return `${path}: no item is as \`contains\` wants`;
  return null;
}

function objects(value, s, sub, path) {
  if (typeOf(value) !== "object") return null;
  const keys = Object.keys(value);
  for (const key of s.required ?? []) if (!Object.hasOwn(value, key)) return `${path}: ${key} is missing`;
  if (keys.length < s.minProperties || keys.length > s.maxProperties) return `${path}: ${keys.length} members`;
  for (const key of keys) {
    let known = false;
    if (s.properties && Object.hasOwn(s.properties, key)) {
      known = true;
      const found = sub(value[key], s.properties[key], `${path}.${key}`);
      if (found) return found;
    }
    for (const [pattern, inner] of Object.entries(s.patternProperties ?? {})) {
      if (!new RegExp(pattern, "u").test(key)) continue;
      known = true;
      const found = sub(value[key], inner, `${path}.${key}`);
      if (found) return found;
    }
    if (!known && s.additionalProperties !== undefined) {
      const found = sub(value[key], s.additionalProperties, `${path}.${key}`);
      if (found) return s.additionalProperties === false ? `${path}: ${key} is not in the schema` : found;
    }
  }
  return null;
}

// {ok, text} for an answer and the format it was asked in; null when none was asked for.
export function verdict(answer, format) {
  if (!format || format.kind === "text") return null;
  if (format.kind === "regex") {
    try {
      const ok = new RegExp(`^(?:${format.regex})$`, "u").test(answer);
      return {ok, text: ok ? "Matches the expression" : "Does not match the expression"};
    } catch { return null; }
  }
  let value;
  try {
    value = JSON.parse(answer);
  } catch (error) {
    return {ok: false, text: `Not JSON: ${error.message}`};
  }
  if (format.kind === "json_object") {
    const ok = typeOf(value) === "object";
    return {ok, text: ok ? "Valid JSON object" : `JSON, but ${typeOf(value)} instead of an object`};
  }
  const found = violation(value, format.schema);
  return found ? {ok: false, text: `Not as the schema wants: ${found}`} : {ok: true, text: "Matches the schema"};
}
