// Expressions over subschemas, their unfolding, and references inside the document.
#include "structured/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "structured/schema/decimal.h"

namespace di::structured {
namespace {

std::string escape_pointer(const std::string& key) {
  std::string out;
  for (const char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string percent_decode(std::string_view s) {
  std::string out;
  auto hex = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '%' && i + 2 < s.size() && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex(s[i + 1]) * 16 + hex(s[i + 2])));
      i += 2;
    } else {
      out.push_back(s[i]);
    }
  }
  return out;
}

// RFC 3986 §5.3 as far as identifiers of schemas need it.
std::string join_address(const std::string& base, const std::string& ref) {
  const size_t scheme = ref.find(':');
  if (scheme != std::string::npos && ref.find_first_of("/?#") > scheme) return ref;
  const size_t base_scheme = base.find("://");
  if (ref.starts_with("//")) return base.substr(0, base_scheme == std::string::npos ? 0 : base_scheme + 1) + ref;
  const size_t host_end = base_scheme == std::string::npos ? 0 : std::min(base.find('/', base_scheme + 3), base.size());
  if (ref.starts_with("/")) return base.substr(0, host_end) + ref;
  const size_t slash = base.rfind('/');
  if (slash == std::string::npos || slash < host_end)
    return base_scheme == std::string::npos ? ref : base.substr(0, host_end) + "/" + ref;
  return base.substr(0, slash + 1) + ref;
}

const std::string* identifier(const Value& v) {
  const Value* id = v.find("$id");
  if (id == nullptr) id = v.find("id");
  return id != nullptr && id->is_string() ? &id->text : nullptr;
}

}  // namespace

Schema::Schema(Arena& arena, const Value& root, const SpecOptions& options, const Limits& limits,
               std::vector<std::string>& warnings)
    : arena_(arena), root_(root), options_(options), limits_(limits), warnings_(warnings) {
  plain_ = plain_numbers(arena);
  all_numbers_ = all_numbers(arena);
  integers_ = integer_texts(arena);
  wholes_ = whole_numbers(arena);
  intern({Kind::kAny, nullptr, {}});
  intern({Kind::kNever, nullptr, {}});
  langs_[kAnyExpr] = std::make_unique<Lang>(everything());
  langs_[kNeverExpr] = std::make_unique<Lang>();
  index();
}

// Parents, resources and anchors of every container, and how many subschemas, properties and values there are. Names
// inside enum, const, default and examples are values, not schemas.
void Schema::index() {
  // What stands at a place decides whether identifiers there count: those below unknown keywords do not.
  enum class At : uint8_t { kSchema, kMap, kList, kUnknown };
  struct Visit {
    const Value* at;
    const Value* resource;
    std::string base;
    At kind;
  };
  auto kind_of = [](const std::string& key, At parent) {
    if (parent == At::kMap || parent == At::kList || key.empty())
      return parent == At::kUnknown ? At::kUnknown : At::kSchema;
    if (parent == At::kUnknown) return At::kUnknown;
    for (const char* map :
         {"properties", "patternProperties", "$defs", "definitions", "$def", "dependentSchemas", "dependencies"}) {
      if (key == map) return At::kMap;
    }
    for (const char* list : {"allOf", "anyOf", "oneOf", "prefixItems"}) {
      if (key == list) return At::kList;
    }
    for (const char* one : {"items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not",
                            "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"}) {
      if (key == one) return At::kSchema;
    }
    return At::kUnknown;
  };
  const auto count = [this](size_t& total, const Value* of, uint32_t limit, std::string_view what, const Value* at) {
    total += of == nullptr ? 0 : of->items.size();
    if (total > limit) fail("constraint_too_complex", at, what, fmt::format("more than {} in all", limit));
  };
  size_t subschemas = 0;
  size_t properties = 0;
  size_t values = 0;
  std::vector<Visit> stack{{&root_, &root_, "", At::kSchema}};
  places_[&root_] = {nullptr, 0, &root_};
  while (!stack.empty()) {
    Visit v = std::move(stack.back());
    stack.pop_back();
    if (v.at->is_object()) places_[v.at].resource = v.resource;
    if (v.at->is_object() && v.kind == At::kSchema) {
      count(properties, v.at->find("properties"), limits_.max_properties, "properties", v.at);
      count(values, v.at->find("enum"), limits_.max_enum_values, "enum", v.at);
      if (++subschemas > limits_.max_subschemas)
        fail("constraint_too_complex", v.at, "", fmt::format("more than {} subschemas", limits_.max_subschemas));
      if (failed()) return;
      const std::string* id = identifier(*v.at);
      if (id != nullptr && !id->starts_with("#")) {
        const std::string address = join_address(v.base, id->substr(0, id->find('#')));
        if (v.at != &root_ || v.at->find("$id") != nullptr || v.at->find("id") != nullptr) {
          v.base = address;
          v.resource = v.at;
          anchors_.emplace(address, v.at);
        }
      } else if (id != nullptr) {
        anchors_.emplace(v.base + *id, v.at);
      }
      for (const char* key : {"$anchor", "$dynamicAnchor"}) {
        const Value* a = v.at->find(key);
        if (a == nullptr || !a->is_string()) continue;
        anchors_.emplace(v.base + "#" + a->text, v.at);
        if (key[1] == 'd') dynamic_anchors_[a->text].push_back(v.at);
      }
      places_[v.at].resource = v.resource;
    }
    for (size_t i = 0; i < v.at->items.size(); ++i) {
      const Value& child = v.at->items[i];
      if (!child.is_object() && !child.is_array() && !child.is_bool()) continue;
      places_[&child] = {v.at, i, v.resource};
      if (v.kind != At::kMap && v.at->is_object() &&
          (v.at->keys[i] == "enum" || v.at->keys[i] == "const" || v.at->keys[i] == "default" ||
           v.at->keys[i] == "examples"))
        continue;
      stack.push_back({&child, v.resource, v.base, kind_of(v.at->is_object() ? v.at->keys[i] : "", v.kind)});
    }
  }
}

std::string Schema::pointer_to(const Value* v) const {
  std::string out;
  while (v != nullptr && v != &root_) {
    const auto it = places_.find(v);
    if (it == places_.end() || it->second.parent == nullptr) break;
    const Value* p = it->second.parent;
    out = "/" + (p->is_object() ? escape_pointer(p->keys[it->second.index]) : std::to_string(it->second.index)) + out;
    v = p;
  }
  return out;
}

const Value* Schema::keyword_of(const Value& node, std::string_view name) {
  const Value* v = node.find(name);
  if (v != nullptr) visit(node, name);
  return v;
}

std::vector<std::string> Schema::visited() const {
  std::vector<std::string> out;
  for (const auto& [node, name] : visited_) out.push_back(pointer_to(node) + "/" + escape_pointer(name));
  return out;
}

void Schema::fail(std::string_view code, const Value* at, std::string_view keyword, std::string message) {
  if (error_) return;
  error_ = CompileError{std::string(code), pointer_to(at != nullptr ? at : reading_), std::string(keyword),
                        std::move(message)};
}

bool Schema::cannot(const Value& node, std::string_view keyword, std::string message) {
  if (options_.lenient) {
    warnings_.push_back(fmt::format("#{}: \"{}\" is not enforced: {}", pointer_to(&node), keyword, message));
  } else {
    fail("unsupported_schema_feature", &node, keyword, std::move(message));
  }
  return options_.lenient;
}

const Value* Schema::follow(const Value* from, std::string_view pointer) const {
  size_t at = 0;
  while (at < pointer.size()) {
    if (pointer[at] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string key;
    for (size_t i = at + 1; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
        key.push_back(pointer[++i] == '0' ? '~' : '/');
      } else {
        key.push_back(pointer[i]);
      }
    }
    at = end;
    if (from->is_array()) {
      if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos) return nullptr;
      const size_t i = std::stoul(key);
      from = i < from->items.size() ? &from->items[i] : nullptr;
    } else {
      from = from->find(key);
    }
    if (from == nullptr) return nullptr;
  }
  return from;
}

const Value* Schema::resolve(const Value& from, const std::string& ref) {
  const auto place = places_.find(&from);
  const Value* resource = place == places_.end() || place->second.resource == nullptr ? &root_ : place->second.resource;
  // The resource's own address, from the identifiers above it.
  std::string base;
  std::vector<const std::string*> ids;
  for (const Value* v = resource; v != nullptr;) {
    if (v->is_object()) {
      if (const std::string* id = identifier(*v); id != nullptr && !id->starts_with("#")) ids.push_back(id);
    }
    const auto it = places_.find(v);
    v = it == places_.end() ? nullptr : it->second.parent;
  }
  for (size_t i = ids.size(); i > 0; --i) base = join_address(base, ids[i - 1]->substr(0, ids[i - 1]->find('#')));
  const size_t hash = ref.find('#');
  const std::string address = ref.substr(0, hash);
  const std::string fragment = hash == std::string::npos ? "" : percent_decode(std::string_view(ref).substr(hash + 1));
  if (!address.empty()) {
    const std::string full = join_address(base, address);
    const auto it = anchors_.find(full);
    if (it == anchors_.end()) return nullptr;
    resource = it->second;
    base = full;
  }
  if (fragment.empty()) return resource;
  if (fragment[0] == '/') {
    const Value* found = follow(resource, fragment);
    // Documents that give a nested object an identifier often still point from the root.
    if (found == nullptr && address.empty()) found = follow(&root_, fragment);
    return found;
  }
  const auto it = anchors_.find(base + "#" + fragment);
  return it == anchors_.end() ? nullptr : it->second;
}

ExprId Schema::intern(Expr e) {
  uint64_t h = static_cast<uint64_t>(e.kind) * 0x9e3779b97f4a7c15ULL + reinterpret_cast<uintptr_t>(e.value);
  for (const ExprId k : e.kids) h = (h ^ k) * 0xff51afd7ed558ccdULL;
  const auto [from, to] = by_hash_.equal_range(h);
  for (auto it = from; it != to; ++it) {
    const Expr& o = exprs_[it->second];
    if (o.kind == e.kind && o.value == e.value && o.kids == e.kids) return it->second;
  }
  const auto id = static_cast<ExprId>(exprs_.size());
  if (exprs_.size() >= limits_.max_subschemas * 4ULL) {
    fail("constraint_too_complex", e.value, "",
         fmt::format("more than {} combinations of subschemas", limits_.max_subschemas * 4ULL));
    return kNeverExpr;
  }
  exprs_.push_back(std::move(e));
  langs_.emplace_back();
  in_progress_.push_back(false);
  cut_.push_back(false);
  by_hash_.emplace(h, id);
  return id;
}

ExprId Schema::root_expr() {
  return schema(root_);
}

ExprId Schema::schema(const Value& node) {
  if (node.is_bool()) return node.boolean ? kAnyExpr : kNeverExpr;
  if (!node.is_object()) {
    fail("invalid_json_schema", &node, "", "a schema must be an object or a boolean");
    return kNeverExpr;
  }
  if (node.items.empty() && !options_.close_objects) return kAnyExpr;
  return intern({Kind::kSchema, &node, {}});
}

ExprId Schema::constant(const Value& value) {
  return intern({Kind::kConstant, &value, {}});
}

ExprId Schema::all(std::vector<ExprId> parts) {
  std::vector<ExprId> flat;
  for (const ExprId p : parts) {
    if (p == kNeverExpr) return kNeverExpr;
    if (p == kAnyExpr) continue;
    if (exprs_[p].kind == Kind::kAll) {
      flat.insert(flat.end(), exprs_[p].kids.begin(), exprs_[p].kids.end());
    } else {
      flat.push_back(p);
    }
  }
  // The first of equals keeps its place: it decides the order of members.
  std::vector<ExprId> kids;
  for (const ExprId p : flat) {
    if (std::ranges::find(kids, p) == kids.end()) kids.push_back(p);
  }
  if (kids.empty()) return kAnyExpr;
  if (kids.size() == 1) return kids[0];
  return intern({Kind::kAll, nullptr, std::move(kids)});
}

ExprId Schema::none(ExprId a) {
  if (a == kAnyExpr) return kNeverExpr;
  if (a == kNeverExpr) return kAnyExpr;
  return intern({Kind::kNot, nullptr, {a}});
}

const Lang& Schema::unfold(ExprId id) {
  if (langs_[id] != nullptr) return *langs_[id];
  auto keep = [&](Lang lang) -> const Lang& {
    temporary_.push_back(std::make_unique<Lang>(std::move(lang)));
    return *temporary_.back();
  };
  if (failed()) return keep({});
  if (in_progress_[id] || depth_ > 400) {
    if (depth_ > 400) fail("constraint_too_complex", exprs_[id].value, "", "references nested deeper than 400");
    // It reaches itself without reading anything: the least solution starts from nothing.
    ++cuts_;
    cut_[id] = true;
    Lang cut;
    cut.exact = false;
    return keep(std::move(cut));
  }
  in_progress_[id] = true;
  ++depth_;
  const uint32_t cuts_before = cuts_;
  const Expr e = exprs_[id];
  Lang lang;
  switch (e.kind) {
    case Kind::kSchema: {
      const Value* outer = std::exchange(reading_, e.value);
      lang = read(*e.value);
      reading_ = outer;
      if (arena_.budget().exhausted() && exhausted_at_.second.empty())
        exhausted_at_ = {pointer_to(e.value), std::string(last_keyword_)};
      break;
    }
    case Kind::kConstant:
      lang = of_constant(*e.value);
      break;
    case Kind::kAll:
      lang = unfold(e.kids[0]);
      for (size_t i = 1; i < e.kids.size() && !failed(); ++i) intersect(lang, unfold(e.kids[i]));
      break;
    case Kind::kNot: {
      const Lang& inner = unfold(e.kids[0]);
      if (inner.exact) {
        lang = complement(inner, nullptr);
      } else {
        lang.exact = false;
      }
      break;
    }
    default:
      break;
  }
  place_witnesses(lang);
  --depth_;
  in_progress_[id] = false;
  // The other ways on, if there are any, have to make up for it.
  if (cut_[id] && e.kind == Kind::kSchema && !failed() && lang_empty(lang, 0)) {
    fail("ref_cycle", e.value, "$ref", "the reference reaches itself and nothing else; give it another alternative");
  }
  cut_[id] = false;
  if (e.kind == Kind::kSchema && !unsatisfiable_known_ && !failed() && lang_empty(lang, 0)) {
    unsatisfiable_known_ = true;
    unsatisfiable_ = pointer_to(e.value);
  }
  if (e.kind == Kind::kSchema && arena_.budget().exhausted() && exhausted_at_.second.empty())
    exhausted_at_ = {pointer_to(e.value), std::string(last_keyword_)};
  if (cuts_ == cuts_before || depth_ == 0) {
    langs_[id] = std::make_unique<Lang>(std::move(lang));
    return *langs_[id];
  }
  return keep(std::move(lang));
}

}  // namespace di::structured
