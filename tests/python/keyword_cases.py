"""What each JSON Schema keyword means here, as cases that are run: (keyword, rule, cases). A case is
(schema, texts that fit, texts that do not) or (schema, the code that it is refused with). docs/structured-keywords.md is made of
this by tools/structured_keywords.py."""

U = "unsupported_schema_feature"
NO = "unsatisfiable_schema"
BAD = "invalid_json_schema"
LARGE = "constraint_too_complex"
OBJECT = {"type": "object", "additionalProperties": False}


def closed(properties, **more):
    return {**OBJECT, "properties": properties, **more}


INT, STR, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}

KEYWORDS = [
    ("type", "one name or a list; an integer has no fraction and no exponent; none: every type that the other keywords allow", [
        (INT, ["0", "-12"], ["1.0", "1e2", "-0", "\"1\"", "01"]), ({"type": ["null", "boolean"]}, ["null", "true"], ["0", "[]"]),
        ({"type": "number"}, ["0", "-1.50", "2e-3"], ["1.", ".5", "+1", "NaN"]), ({"type": "text"}, BAD), ({"type": []}, BAD)]),
    ("enum", "JSON values, those that the other keywords allow; numbers as the schema writes them", [
        ({"enum": [1, "a", [True], {"k": None}]}, ["1", "\"a\"", "[true]", "{\"k\": null}"], ["2", "\"b\"", "[false]", "{}"]),
        ({"enum": [1, "a", None], "type": "string"}, ["\"a\""], ["1", "null"]), ({"enum": []}, NO), ({"enum": 3}, BAD)]),
    ("const", "as an enum of one", [({"const": "a\"b"}, ["\"a\\\"b\""], ["\"ab\""]), ({"const": 3, "type": "string"}, NO)]),
    ("properties", "in the order of the schema, or in any with `property_order: any`; each at most once", [
        (closed({"a": INT, "b": STR}), ["{}", "{\"a\": 1}", "{\"b\": \"\"}", "{\"a\": 1, \"b\": \"\"}"], ["{\"b\": \"\", \"a\": 1}", "{\"a\": 1, \"a\": 1}", "{\"a\": \"\"}"]),
        (closed({"a": False, "b": INT}), ["{\"b\": 1}"], ["{\"a\": 1}"]), ({"properties": []}, BAD)]),
    ("required", "names that `properties` does not declare too", [
        (closed({"a": INT, "b": INT}, required=["b"]), ["{\"b\": 1}", "{\"a\": 1, \"b\": 1}"], ["{}", "{\"a\": 1}"]),
        ({"type": "object", "required": ["x"]}, ["{\"x\": 0}"], ["{}", "{\"y\": 0}"]), (closed({}, required=["a"]), NO), ({"required": True}, BAD)]),
    ("additionalProperties", "names that are neither declared nor match a pattern; two equal ones are not prevented", [
        ({**OBJECT, "properties": {"a": INT}}, ["{\"a\": 1}"], ["{\"b\": 1}"]),
        ({"type": "object", "properties": {"a": INT}, "additionalProperties": NULL}, ["{\"a\": 1, \"b\": null}"], ["{\"a\": null}", "{\"b\": 1}"]),
        ({**OBJECT, "patternProperties": {"^x": INT}}, ["{\"x1\": 1}"], ["{\"y\": 1}"])]),
    ("patternProperties", "several may overlap: the value fits all that match; declared names too", [
        ({**OBJECT, "patternProperties": {"^a": INT, "z$": {"minimum": 5}}}, ["{\"a\": 1}", "{\"az\": 6}", "{\"z\": \"s\"}"], ["{\"az\": 1}", "{\"a\": \"s\"}"]),
        (closed({"ab": {}}, patternProperties={"^a": INT}), ["{\"ab\": 3}"], ["{\"ab\": null}"]), ({"patternProperties": {"(": {}}}, "invalid_regex")]),
    ("propertyNames", "pattern, enum, const, length, format", [
        ({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": INT}, ["{}", "{\"abc\": 1}"], ["{\"d\": 1}"]),
        ({"type": "object", "propertyNames": {"maxLength": 1}, "additionalProperties": INT}, ["{\"q\": 1}"], ["{\"qq\": 1}"])]),
    ("minProperties", "declared and additional members are counted together", [
        (closed({"a": INT, "b": INT}, minProperties=1), ["{\"a\": 1}", "{\"b\": 1}"], ["{}"]), ({"minProperties": -1}, BAD)]),
    ("maxProperties", "as above", [(closed({"a": INT, "b": INT}, maxProperties=1), ["{}", "{\"b\": 1}"], ["{\"a\": 1, \"b\": 1}"])]),
    ("dependentRequired", "at most 12 triggers", [(closed({"a": INT, "b": INT}, dependentRequired={"a": ["b"]}), ["{}", "{\"b\": 1}", "{\"a\": 1, \"b\": 1}"], ["{\"a\": 1}"])]),
    ("dependentSchemas", "where the trigger's presence can be told from the members", [
        (closed({"a": INT, "b": INT}, dependentSchemas={"a": {"required": ["b"]}}), ["{\"b\": 1}", "{\"a\": 1, \"b\": 1}"], ["{\"a\": 1}"])]),
    ("dependencies", "both older forms", [(closed({"a": INT, "b": INT}, dependencies={"a": ["b"]}), ["{}", "{\"a\": 1, \"b\": 1}"], ["{\"a\": 1}"]),
                                          (closed({"a": INT, "b": INT}, dependencies={"a": {"required": ["b"]}}), ["{\"b\": 1}"], ["{\"a\": 1}"])]),
    ("items", "one schema; the older list of schemas", [
        ({"type": "array", "items": INT}, ["[]", "[1, 2]"], ["[\"a\"]", "[1, null]"]), ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"type": "array", "items": [INT, NULL], "additionalItems": False}, ["[1]", "[1, null]"], ["[null]", "[1, null, 1]"])]),
    ("prefixItems", "by position; `items` is for those behind", [({"type": "array", "prefixItems": [INT, STR], "items": NULL}, ["[1]", "[1, \"a\", null]"], ["[\"a\"]", "[1, \"a\", 1]"])]),
    ("additionalItems", "beside a list of `items`", [({"type": "array", "items": [INT], "additionalItems": NULL}, ["[1, null]"], ["[1, 1]"])]),
    ("minItems", "a counter", [({"type": "array", "items": INT, "minItems": 2}, ["[1, 2]"], ["[]", "[1]"]), ({"type": "array", "minItems": 2, "maxItems": 1}, NO)]),
    ("maxItems", "a counter", [({"type": "array", "items": INT, "maxItems": 1}, ["[]", "[1]"], ["[1, 2]"])]),
    ("uniqueItems", "items of a finite set (enum, const, boolean, null; at most 64 values), or at most one item; else refused", [
        ({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}, ["[]", "[3, 1]"], ["[1, 1]", "[1, 2, 1]"]),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, ["[true, false]"], ["[true, true]"]),
        ({"type": "array", "items": {}, "uniqueItems": True}, U)]),
    ("contains", "where its schema equals that of the items, excludes it or includes it; else refused", [
        ({"type": "array", "items": INT, "contains": INT}, ["[1]"], ["[]"]), ({"type": "array", "items": STR, "contains": INT, "minContains": 0}, ["[]", "[\"a\"]"], ["[1]"])]),
    ("minContains", "beside `contains`", [({"type": "array", "items": INT, "contains": INT, "minContains": 2}, ["[1, 2]"], ["[1]"])]),
    ("maxContains", "beside `contains`", [({"type": "array", "items": INT, "contains": INT, "maxContains": 2}, ["[1, 2]"], ["[1, 2, 3]"])]),
    ("unevaluatedProperties", "where what is evaluated is known before any text", [
        ({"type": "object", "properties": {"a": INT}, "unevaluatedProperties": False}, ["{\"a\": 1}"], ["{\"b\": 1}"]),
        ({"allOf": [{"properties": {"a": INT}}], "type": "object", "unevaluatedProperties": False}, ["{\"a\": 1}"], ["{\"b\": 1}"])]),
    ("unevaluatedItems", "as above", [({"type": "array", "prefixItems": [INT], "unevaluatedItems": False}, ["[1]"], ["[1, 2]"])]),
    ("minLength", "code points of the decoded string; an escape is one", [({"type": "string", "minLength": 2}, ["\"ab\"", "\"\\n\u00e9\"", "\"\U0001f989x\""], ["\"\"", "\"a\"", "\"\U0001f989\""]), ({"minLength": -1}, BAD)]),
    ("maxLength", "as above; a large bound costs what a small one does", [
        ({"type": "string", "maxLength": 1}, ["\"\"", "\"\U0001f989\"", "\"\\n\""], ["\"ab\""]), ({"type": "string", "maxLength": 20000}, ["\"ab\""], ["1"]),
        ({"type": "string", "minLength": 3, "maxLength": 2}, NO)]),
    ("pattern", "ECMA-262 with `u`, found anywhere in the decoded string; together with length and format", [
        ({"type": "string", "pattern": "b"}, ["\"b\"", "\"abc\""], ["\"ac\""]), ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 2}, ["\"ab\""], ["\"abc\"", "\"1\""]),
        ({"type": "string", "pattern": "^a\"$"}, ["\"a\\\"\""], ["\"a\""]), ({"pattern": "(a"}, "invalid_regex"), ({"pattern": "(a)\\1"}, "unsupported_regex_feature")]),
    ("format", "the list below; others are annotations with a warning", [({"type": "string", "format": "date", "maxLength": 10}, ["\"2024-02-29\""], ["\"2023-02-29\"", "\"x\""])]),
    ("minimum", "exact decimals of any size; bounded numbers have no exponent", [
        ({"type": "integer", "minimum": -5}, ["-5", "0", "123456789012345678901234567890"], ["-6"]), ({"type": "number", "minimum": 0.5}, ["0.5", "2"], ["0.49", "1e1"])]),
    ("maximum", "as above", [({"type": "integer", "maximum": 10**22}, ["10000000000000000000000"], ["10000000000000000000001"]), ({"type": "integer", "minimum": 3, "maximum": 2}, NO)]),
    ("exclusiveMinimum", "a number, or the older boolean", [({"type": "number", "exclusiveMinimum": 0}, ["0.001"], ["0", "0.0"]), ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"])]),
    ("exclusiveMaximum", "as above", [({"type": "integer", "exclusiveMaximum": 0}, ["-1"], ["0"])]),
    ("multipleOf", "integers and decimals of at most 18 digits, 20 of them after the point", [
        ({"type": "integer", "multipleOf": 7, "minimum": 0}, ["0", "14", "700"], ["1", "15"]), ({"type": "number", "multipleOf": 0.01}, ["1.25", "3"], ["1.255"]),
        ({"type": "integer", "multipleOf": 86400, "minimum": 100000}, ["172800"], ["86400", "172801"]), ({"multipleOf": 0.123456789}, ["0.370370367", "123456789"], ["1", "0.123456788"]),
        ({"multipleOf": 0}, BAD), ({"multipleOf": 10**18 + 3}, LARGE)]),
    ("anyOf", "union; siblings hold too", [({"anyOf": [INT, STR]}, ["1", "\"a\""], ["null"]), ({"anyOf": [INT, STR], "minimum": 5}, ["5", "\"a\""], ["4"]), ({"anyOf": []}, BAD)]),
    ("oneOf", "branches that can be told apart: by type, range, pattern, a required constant; else refused", [
        ({"oneOf": [INT, NULL]}, ["1", "null"], ["\"a\""]),
        ({"oneOf": [closed({"k": {"const": "a"}, "x": INT}, required=["k"]), closed({"k": {"const": "b"}}, required=["k"])]}, ["{\"k\": \"a\", \"x\": 1}", "{\"k\": \"b\"}"], ["{\"k\": \"b\", \"x\": 1}"]),
        ({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]}, ["\"a\"", "\"b\""], ["\"ab\"", "\"c\""])]),
    ("allOf", "intersection; members in order of appearance", [
        ({"allOf": [{"type": "object", "properties": {"a": INT}}, {"required": ["a"]}], "additionalProperties": True}, ["{\"a\": 1}"], ["{}", "{\"a\": \"s\"}"]),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, ["3", "5"], ["2", "6"]), ({"allOf": [INT, STR]}, NO)]),
    ("not", "of everything but `uniqueItems`, `contains` on some arrays and what refers to itself; else refused", [
        ({"type": "string", "not": {"enum": ["a"]}}, ["\"b\"", "\"aa\""], ["\"a\""]), ({"not": {"type": ["object", "array"]}}, ["1", "null"], ["{}", "[]"]),
        ({"type": "string", "not": {"pattern": "x"}}, ["\"y\""], ["\"axb\""]), ({"type": "object", "not": {"required": ["a"]}}, ["{}", "{\"b\": 1}"], ["{\"a\": 1}"]),
        ({"type": "object", "not": {"additionalProperties": INT}}, ["{\"a\": \"x\"}", "{\"a\": 1, \"b\": \"x\"}"], ["{\"a\": 1}", "{}"]), ({"not": {}}, NO), ({"not": {"uniqueItems": True}}, U)]),
    ("if", "with `then` and `else`, where `not` of it can be made", [
        (closed({"k": {"enum": ["a", "b"]}, "v": {}}, required=["k", "v"], **{"if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"v": INT}}, "else": {"properties": {"v": STR}}}),
         ["{\"k\": \"a\", \"v\": 1}", "{\"k\": \"b\", \"v\": \"s\"}"], ["{\"k\": \"a\", \"v\": \"s\"}", "{\"k\": \"b\", \"v\": 1}"])]),
    ("then", "beside `if`", [({"type": "integer", "if": {"minimum": 5}, "then": {"multipleOf": 5}}, ["3", "10"], ["6"])]),
    ("else", "beside `if`", [({"type": "integer", "if": {"minimum": 5}, "else": {"maximum": 2}}, ["6", "2"], ["3"])]),
    ("$ref", "to `#`, pointers, anchors and ids in the document, recursive too; siblings hold; nothing is fetched", [
        ({"$defs": {"a/b": INT}, "$ref": "#/$defs/a~1b"}, ["1"], ["\"s\""]), ({"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 3}, ["3"], ["2"]),
        (closed({"v": INT, "next": {"$ref": "#"}}), ["{\"v\": 1, \"next\": {\"next\": {}}}"], ["{\"next\": 1}"]),
        ({"$ref": "http://example.com/s.json"}, "unresolvable_ref"), ({"$ref": "#/$defs/none"}, "unresolvable_ref"), ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "ref_cycle")]),
    ("$defs", "and `definitions`, `$def`", [({"definitions": {"i": INT}, "$ref": "#/definitions/i"}, ["1"], ["null"]), ({"$def": {"i": INT}, "$ref": "#/$def/i"}, ["1"], ["null"])]),
    ("$anchor", "", [({"$defs": {"n": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, ["null"], ["1"])]),
    ("$id", "", [({"$id": "http://example.com/root", "$defs": {"n": {"$id": "leaf", "type": "null"}}, "$ref": "leaf"}, ["null"], ["1"])]),
    ("$dynamicRef", "where it has one target", [({"$dynamicAnchor": "n", "type": ["array", "null"], "items": {"$dynamicRef": "#n"}}, ["null", "[[null]]"], ["[1]"])]),
    ("nullable", "OpenAPI: null is allowed too", [({"type": "integer", "nullable": True}, ["1", "null"], ["\"s\""])]),
    ("true, false", "any value; none", [(True, ["1", "[{\"a\": null}]"], ["x"]), (False, NO), ({}, ["\"s\""], ["'s'"])]),
    ("title, description, default, examples, $comment, x-…", "annotations", [({"title": "t", "default": 3, "$comment": "c", "x-y": 1, "type": "null"}, ["null"], ["3"])]),
]

# (format, fits, does not)
FORMATS = [
    ("date-time", ["2024-02-29T23:59:60Z", "1999-12-31t00:00:00.5+01:30"], ["2023-02-29T00:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00"]),
    ("date", ["2000-02-29", "1900-02-28"], ["1900-02-29", "2024-04-31", "24-01-01"]), ("time", ["23:59:59Z", "00:00:00.25-10:00"], ["24:00:00Z", "12:00:00"]),
    ("duration", ["P1Y2M3D", "PT36H", "P4W"], ["P", "PT", "P1D2H", "P1Y2W"]), ("email", ["a.b@example.com", "\\\"q q\\\"@x.org", "a@[127.0.0.1]"], ["a", "a@", ".a@x.y", "a b@x.y"]),
    ("hostname", ["a", "x-1.example.com"], ["-a", "a-.b", "ab--c", "a_b", ""]), ("ipv4", ["0.0.0.0", "255.1.20.3"], ["256.0.0.1", "1.2.3", "01.2.3.4"]),
    ("ipv6", ["::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], [":::", "1:2:3", "12345::", "fe80::1%eth0"]), ("uuid", ["123e4567-E89B-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"]),
    ("uri", ["http://a.b/c?d#e", "urn:x:y"], ["/a", "a b", "http://a b"]), ("uri-reference", ["/a?b", "#c", ""], ["a b", "\\\\\\\\x"]), ("json-pointer", ["", "/a~1b/~0"], ["a", "/~2"]),
    ("relative-json-pointer", ["0#", "1/a"], ["/a", "01/a", "#"]), ("idn-email", ["ü@bücher.de"], ["ü", "a b@c"]), ("idn-hostname", ["bücher.de"], ["a b", "-a"]),
    ("iri", ["http://bücher.de/é"], ["/é", "http://a b"]), ("iri-reference", ["/é"], ["a b"]), ("uri-template", ["/a/{b}{?c*}"], ["/a/{b"]),
    ("regex", ["^a{2,3}(?:[^x-z]+)?$", "(?<n>a)\\\\k<n>"], ["(a", "a**", "[z-a]", "\\\\k<n>"]),
]
# Those that only warn.
ANNOTATED = ["int32", "int64", "float", "double", "byte", "binary", "password", "shoe-size"]
