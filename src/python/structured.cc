// Python module deepinfer.structured over the C interface of structured output. What it offers is described in
// docs/structured-output.md. The interpreter's lock is released while a constraint is compiled or a vocabulary made.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "structured/c_api/deepinfer_structured.h"

namespace py = pybind11;

namespace {

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using Error = std::unique_ptr<di_structured_error, Freed<di_structured_error_free>>;
using VocabularyHandle = std::unique_ptr<di_structured_vocabulary, Freed<di_structured_vocabulary_free>>;
using ConstraintHandle = std::unique_ptr<di_structured_constraint, Freed<di_structured_constraint_free>>;
using MatcherHandle = std::unique_ptr<di_structured_matcher, Freed<di_structured_matcher_free>>;

py::str str_of(di_structured_bytes text) {
  return py::str(text.data == nullptr ? "" : text.data, text.size);
}
py::bytes bytes_of(di_structured_bytes text) {
  return py::bytes(text.data == nullptr ? "" : text.data, text.size);
}

// Kept for the life of the process: an exception type is needed until the interpreter is gone.
PyObject* constraint_error_type() {
  static PyObject* const type = PyErr_NewExceptionWithDoc(
      "deepinfer.structured.ConstraintError",
      "A constraint was refused. code; pointer: JSON pointer into the schema; keyword.", PyExc_ValueError, nullptr);
  return type;
}

[[noreturn]] void raise(const Error& error) {
  if (error == nullptr) throw std::bad_alloc();
  const py::str message = str_of(di_structured_error_message(error.get()));
  const std::string code = str_of(di_structured_error_code(error.get()));
  if (code == "invalid_argument" || code == "invalid_vocabulary") {
    PyErr_SetObject(PyExc_ValueError, message.ptr());
  } else if (code == "internal") {
    PyErr_SetObject(PyExc_RuntimeError, message.ptr());
  } else {
    py::object exception = py::reinterpret_borrow<py::object>(constraint_error_type())(message);
    exception.attr("code") = code;
    exception.attr("pointer") = str_of(di_structured_error_pointer(error.get()));
    exception.attr("keyword") = str_of(di_structured_error_keyword(error.get()));
    PyErr_SetObject(constraint_error_type(), exception.ptr());
  }
  throw py::error_already_set();
}

template <class Handle, class Call>
Handle checked(const Call& call) {
  di_structured_error* error = nullptr;
  Handle handle(call(&error));
  if (handle == nullptr) raise(Error(error));
  return handle;
}

// The UTF-8 form of a str, without a copy, or the bytes of a bytes object; valid as long as the object. A lone
// surrogate is a UnicodeEncodeError.
std::string_view utf8_of(const py::handle& text) {
  if (PyBytes_Check(text.ptr())) {
    return {PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(text.ptr()))};
  }
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

std::string json_text(const py::handle& value) {
  using namespace pybind11::literals;
  return py::module_::import("json").attr("dumps")(value, "ensure_ascii"_a = false).cast<std::string>();
}

// One id or a list of them.
std::vector<int32_t> ids_of(const py::handle& ids) {
  if (PyLong_Check(ids.ptr())) return {ids.cast<int32_t>()};
  return ids.cast<std::vector<int32_t>>();
}

class Vocabulary {
 public:
  static Vocabulary load(const std::string& path) {
    return Vocabulary(checked<VocabularyHandle>([&](di_structured_error** error) {
      const py::gil_scoped_release unlocked;
      return di_structured_vocabulary_load(path.c_str(), error);
    }));
  }
  static Vocabulary from_json(const py::object& text) {
    const std::string_view json = utf8_of(text);
    return Vocabulary(checked<VocabularyHandle>([&](di_structured_error** error) {
      const py::gil_scoped_release unlocked;
      return di_structured_vocabulary_from_json(json.data(), json.size(), error);
    }));
  }
  Vocabulary(const std::vector<py::bytes>& tokens, const std::vector<int32_t>& special, const py::object& roles) {
    std::vector<di_structured_token> rows;
    for (const py::bytes& token : tokens) {
      const std::string_view text = utf8_of(token);
      rows.push_back({{text.data(), text.size()}, 0});
    }
    for (const int32_t id : special) {
      if (id < 0 || static_cast<size_t>(id) >= rows.size()) throw py::value_error("special: an id is out of range");
      rows[static_cast<size_t>(id)].special = 1;
    }
    di_structured_specials named = {-1, -1, -1, -1};
    if (!roles.is_none()) {
      for (const auto& [role, id] : roles.cast<std::vector<std::pair<std::string, int32_t>>>()) {
        int32_t* const target = role == "eos"           ? &named.eos
                                : role == "think_begin" ? &named.think_begin
                                : role == "think_end"   ? &named.think_end
                                : role == "dsml"        ? &named.dsml
                                                        : nullptr;
        if (target == nullptr) throw py::value_error("roles: expected eos, think_begin, think_end or dsml");
        *target = id;
      }
    }
    handle_ = checked<VocabularyHandle>([&](di_structured_error** error) {
      return di_structured_vocabulary_new(rows.data(), rows.size(), roles.is_none() ? nullptr : &named, error);
    });
  }

  int32_t size() const { return di_structured_vocabulary_size(handle_.get()); }
  size_t mask_words() const { return di_structured_mask_words(handle_.get()); }
  py::bytes token_bytes(int32_t id) const { return bytes_of(di_structured_token_bytes(handle_.get(), id)); }
  bool is_special(int32_t id) const { return di_structured_token_is_special(handle_.get(), id) != 0; }
  int32_t special_id(const py::object& spelling) const {
    const std::string_view text = utf8_of(spelling);
    return di_structured_special_id(handle_.get(), text.data(), text.size());
  }
  int32_t eos() const { return di_structured_vocabulary_specials(handle_.get()).eos; }
  std::vector<int32_t> encode_greedy(const py::object& text, bool with_special) const {
    const std::string_view utf8 = utf8_of(text);
    std::vector<int32_t> ids(utf8.size());
    ids.resize(di_structured_encode_greedy(handle_.get(), utf8.data(), utf8.size(), with_special ? 1 : 0, ids.data(),
                                           ids.size()));
    return ids;
  }
  const di_structured_vocabulary* get() const { return handle_.get(); }

 private:
  explicit Vocabulary(VocabularyHandle handle) : handle_(std::move(handle)) {}
  VocabularyHandle handle_;
};

class Constraint {
 public:
  Constraint(const Vocabulary& vocabulary, const std::string& kind, const py::object& payload,
             const py::kwargs& options)
      : words_(vocabulary.mask_words()) {
    std::string made;
    if (!payload.is_none() && !PyUnicode_Check(payload.ptr()) && !PyBytes_Check(payload.ptr()))
      made = json_text(payload);
    const std::string_view text = payload.is_none() ? std::string_view() : made.empty() ? utf8_of(payload) : made;
    const std::string settings = json_text(options);
    handle_ = checked<ConstraintHandle>([&](di_structured_error** error) {
      const py::gil_scoped_release unlocked;
      return di_structured_compile(vocabulary.get(), kind.c_str(), text.data(), text.size(), settings.data(),
                                   settings.size(), error);
    });
  }
  py::list warnings() const {
    py::list out;
    for (size_t i = 0; i < di_structured_warning_count(handle_.get()); ++i)
      out.append(str_of(di_structured_warning(handle_.get(), i)));
    return out;
  }
  int64_t memory_bytes() const { return di_structured_constraint_memory(handle_.get()); }
  size_t mask_words() const { return words_; }
  const di_structured_constraint* get() const { return handle_.get(); }

 private:
  ConstraintHandle handle_;
  size_t words_;
};

class Matcher {
 public:
  Matcher(const Constraint& constraint, const std::vector<int32_t>& stop_tokens)
      : Matcher(di_structured_matcher_new(constraint.get(), stop_tokens.data(), stop_tokens.size()),
                constraint.mask_words()) {}
  Matcher clone() const { return {di_structured_matcher_clone(handle_.get()), words_}; }

  bool needs_mask() const { return di_structured_needs_mask(handle_.get()) != 0; }
  py::bytes mask() {
    std::vector<uint32_t> row(words_);
    if (di_structured_fill_mask(handle_.get(), row.data(), words_) == 0) failed();
    return {reinterpret_cast<const char*>(row.data()), words_ * 4};
  }
  // Any writable buffer of whole words: array('I'), a numpy row, a bytearray.
  void fill_mask(const py::buffer& buffer) {
    const py::buffer_info info = buffer.request(true);
    if (PyBuffer_IsContiguous(info.view(), 'C') == 0) throw py::value_error("fill_mask: the buffer is not contiguous");
    const auto bytes = static_cast<size_t>(info.size * info.itemsize);
    if (bytes < words_ * 4 || bytes % 4 != 0 || reinterpret_cast<uintptr_t>(info.ptr) % alignof(uint32_t) != 0) {
      throw py::value_error("fill_mask: expected a buffer of at least " + std::to_string(words_) +
                            " 32-bit words, found " + std::to_string(bytes) + " bytes");
    }
    if (di_structured_fill_mask(handle_.get(), static_cast<uint32_t*>(info.ptr), bytes / 4) == 0) failed();
  }
  bool allowed(int32_t id) const { return di_structured_allowed(handle_.get(), id) != 0; }
  size_t accept(const py::object& ids) {
    const std::vector<int32_t> list = ids_of(ids);
    return di_structured_accept(handle_.get(), list.data(), list.size());
  }
  bool accept_bytes(const py::object& text) {
    const std::string_view utf8 = utf8_of(text);
    return di_structured_accept_bytes(handle_.get(), utf8.data(), utf8.size()) != 0;
  }
  size_t validate(const py::object& ids) const {
    const std::vector<int32_t> list = ids_of(ids);
    return di_structured_validate(handle_.get(), list.data(), list.size());
  }
  py::tuple masks_along(const py::object& ids) {
    const std::vector<int32_t> list = ids_of(ids);
    std::vector<uint32_t> rows((list.size() + 1) * words_);
    const size_t prefix = di_structured_fill_masks_along(handle_.get(), list.data(), list.size(), rows.data(), words_);
    if (di_structured_failed(handle_.get()) != 0) failed();
    py::list out;
    for (size_t i = 0; i <= prefix; ++i)
      out.append(py::bytes(reinterpret_cast<const char*>(rows.data() + i * words_), words_ * 4));
    return py::make_tuple(prefix, out);
  }
  bool rollback(size_t n) { return di_structured_rollback(handle_.get(), n) != 0; }
  void reset() { di_structured_reset(handle_.get()); }
  size_t tokens() const { return di_structured_token_count(handle_.get()); }
  bool accepting() const { return di_structured_accepting(handle_.get()) != 0; }
  bool terminated() const { return di_structured_terminated(handle_.get()) != 0; }
  bool has_failed() const { return di_structured_failed(handle_.get()) != 0; }
  uint32_t state() const { return di_structured_state(handle_.get()); }
  py::bytes forced_text(size_t limit) { return bytes_of(di_structured_forced_text(handle_.get(), limit)); }

 private:
  Matcher(di_structured_matcher* handle, size_t words) : handle_(handle), words_(words) {
    if (handle == nullptr) throw std::bad_alloc();
  }
  [[noreturn]] static void failed() {
    PyErr_SetString(PyExc_RuntimeError, "constraint_failed: a limit was reached while a mask was made");
    throw py::error_already_set();
  }
  MatcherHandle handle_;
  size_t words_;
};

}  // namespace

PYBIND11_MODULE(structured, m) {
  m.doc() = "Structured output: from a constraint to token masks over a vocabulary.";
  m.attr("ConstraintError") = py::reinterpret_borrow<py::object>(constraint_error_type());

  py::class_<Vocabulary>(m, "Vocabulary", "The tokens of a model.")
      .def_static("load", &Vocabulary::load, py::arg("path"), "Reads a tokenizer.json or the folder that holds it.")
      .def_static("from_json", &Vocabulary::from_json, py::arg("text"))
      .def(py::init<const std::vector<py::bytes>&, const std::vector<int32_t>&, const py::object&>(), py::arg("tokens"),
           py::arg("special") = std::vector<int32_t>(), py::arg("roles") = py::none(),
           "tokens: the bytes of each id, b'' where it is unused; special: ids of control tokens; roles: [(role, id)] "
           "with eos, think_begin, think_end, dsml.")
      .def("__len__", &Vocabulary::size)
      .def_property_readonly("mask_words", &Vocabulary::mask_words, "32-bit words of a mask.")
      .def_property_readonly("eos", &Vocabulary::eos, "The end-of-sequence id, or -1.")
      .def("token_bytes", &Vocabulary::token_bytes, py::arg("id"))
      .def("is_special", &Vocabulary::is_special, py::arg("id"))
      .def("special_id", &Vocabulary::special_id, py::arg("spelling"), "The special token spelt so, or -1.")
      .def("encode_greedy", &Vocabulary::encode_greedy, py::arg("text"), py::arg("with_special") = false,
           "Ids by greedy longest match: not the tokenizer's segmentation.");

  py::class_<Constraint>(m, "Constraint", "A compiled constraint; may be shared by threads.")
      .def(py::init<const Vocabulary&, const std::string&, const py::object&, const py::kwargs&>(),
           py::arg("vocabulary"), py::arg("kind"), py::arg("payload") = py::none(),
           "payload: str, bytes, or a value that becomes JSON. Keywords: as docs/structured-output.md lists them.")
      .def_property_readonly("warnings", &Constraint::warnings)
      .def_property_readonly("memory_bytes", &Constraint::memory_bytes);

  py::class_<Matcher>(m, "Matcher", "The state of one sequence; used by one thread at a time.")
      .def(py::init<const Constraint&, const std::vector<int32_t>&>(), py::arg("constraint"),
           py::arg("stop_tokens") = std::vector<int32_t>())
      .def("clone", &Matcher::clone)
      .def_property_readonly("needs_mask", &Matcher::needs_mask)
      .def("mask", &Matcher::mask, "The mask as bytes: bit i & 7 of byte i >> 3 says whether token i is allowed.")
      .def("fill_mask", &Matcher::fill_mask, py::arg("buffer"), "The same into a writable buffer of 32-bit words.")
      .def("allowed", &Matcher::allowed, py::arg("id"))
      .def("accept", &Matcher::accept, py::arg("ids"), "Takes an id or a list of them; returns how many were taken.")
      .def("accept_bytes", &Matcher::accept_bytes, py::arg("text"), "All of the text, or nothing.")
      .def("validate", &Matcher::validate, py::arg("ids"), "Longest acceptable prefix; the state stays.")
      .def("masks_along", &Matcher::masks_along, py::arg("ids"),
           "(longest acceptable prefix, masks before each of its ids and behind it); the state stays.")
      .def("rollback", &Matcher::rollback, py::arg("n"))
      .def("reset", &Matcher::reset)
      .def_property_readonly("tokens", &Matcher::tokens)
      .def_property_readonly("accepting", &Matcher::accepting)
      .def_property_readonly("terminated", &Matcher::terminated)
      .def_property_readonly("failed", &Matcher::has_failed)
      .def_property_readonly("state", &Matcher::state)
      .def("forced_text", &Matcher::forced_text, py::arg("limit"));
}
