// Python module deepinfer.codec over the codec's C interface. What it offers is described in docs/codec.md. The
// interpreter's lock is released while a request is converted, a prompt encoded or a tokenizer loaded.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codec/c_api/deepinfer_codec.h"

namespace py = pybind11;

namespace {

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using Error = std::unique_ptr<di_codec_error, Freed<di_codec_error_free>>;
using Result = std::unique_ptr<di_codec_result, Freed<di_codec_result_free>>;
using TokenizerHandle = std::unique_ptr<di_codec_tokenizer, Freed<di_codec_tokenizer_free>>;
using OptionsHandle = std::unique_ptr<di_codec_options, Freed<di_codec_options_free>>;
using RequestHandle = std::unique_ptr<di_codec_request, Freed<di_codec_request_free>>;
using PromptHandle = std::unique_ptr<di_codec_prompt, Freed<di_codec_prompt_free>>;
using OutputHandle = std::unique_ptr<di_codec_output, Freed<di_codec_output_free>>;

py::str str_of(di_codec_bytes bytes) {
  return py::str(bytes.data, bytes.size);
}

// Kept for the life of the process: an exception type is needed until the interpreter is gone.
PyObject* conversion_error_type() {
  static PyObject* const type = PyErr_NewExceptionWithDoc(
      "deepinfer.codec.ConversionError",
      "A request was refused. stage: 'parse' or 'convert'; status_code; body: the official error body; param.",
      PyExc_ValueError, nullptr);
  return type;
}

[[noreturn]] void raise(const Error& error) {
  if (error == nullptr) throw std::bad_alloc();
  const py::str message = str_of(di_codec_error_message(error.get()));
  switch (di_codec_error_get_kind(error.get())) {
    case DI_CODEC_ERROR_PARSE:
    case DI_CODEC_ERROR_CONVERT: {
      py::object exception = py::reinterpret_borrow<py::object>(conversion_error_type())(message);
      exception.attr("stage") = di_codec_error_get_kind(error.get()) == DI_CODEC_ERROR_PARSE ? "parse" : "convert";
      exception.attr("status_code") = di_codec_error_http_status(error.get());
      exception.attr("body") = str_of(di_codec_error_body(error.get()));
      exception.attr("param") = str_of(di_codec_error_param(error.get()));
      PyErr_SetObject(conversion_error_type(), exception.ptr());
      break;
    }
    case DI_CODEC_ERROR_ARGUMENT:
      PyErr_SetObject(PyExc_ValueError, message.ptr());
      break;
    case DI_CODEC_ERROR_INTERNAL:
      PyErr_SetObject(PyExc_RuntimeError, message.ptr());
      break;
  }
  throw py::error_already_set();
}

// Calls the C function with its error parameter last, and raises what it reports.
template <class Handle, class Call>
Handle checked(const Call& call) {
  di_codec_error* error = nullptr;
  Handle handle(call(&error));
  if (handle == nullptr) raise(Error(error));
  return handle;
}
template <class Call>
void checked_status(const Call& call) {
  di_codec_error* error = nullptr;
  if (call(&error) != DI_CODEC_OK) raise(Error(error));
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

py::list list_of(di_codec_ids ids) {
  py::list out(ids.size);
  for (size_t i = 0; i < ids.size; ++i) {
    PyObject* number = PyLong_FromLong(ids.data[i]);
    if (number == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), number);
  }
  return out;
}

std::vector<int32_t> ids_of(const py::handle& sequence) {
  const py::object fast = py::reinterpret_steal<py::object>(PySequence_Fast(sequence.ptr(), "expected a list of ids"));
  if (!fast) throw py::error_already_set();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.ptr());
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    const long id = PyLong_AsLong(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    if (id == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (id < INT32_MIN || id > INT32_MAX) throw py::value_error("an id is out of range");
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(id);
  }
  return ids;
}

std::string json_text(const py::handle& value) {
  return py::module_::import("json").attr("dumps")(value).cast<std::string>();
}
py::object json_value(const Result& result) {
  return py::module_::import("json").attr("loads")(str_of(di_codec_result_text(result.get())));
}

class Tokenizer {
 public:
  static Tokenizer load(const std::string& path, const py::dict& rename_added) {
    const std::string renames = renames_of(rename_added);
    return Tokenizer(checked<TokenizerHandle>([&](di_codec_error** error) {
      const py::gil_scoped_release unlocked;
      return di_codec_tokenizer_load(path.c_str(), renames.c_str(), error);
    }));
  }
  static Tokenizer from_json(const py::object& text, const py::dict& rename_added) {
    const std::string renames = renames_of(rename_added);
    const std::string_view json = utf8_of(text);
    return Tokenizer(checked<TokenizerHandle>([&](di_codec_error** error) {
      const py::gil_scoped_release unlocked;
      return di_codec_tokenizer_from_json(json.data(), json.size(), renames.c_str(), error);
    }));
  }

  py::list encode(const py::str& text) const { return encoded(text, di_codec_encode_full); }
  py::list encode_plain(const py::str& text) const { return encoded(text, di_codec_encode_plain); }
  py::str decode(const py::object& ids, bool skip_special) const {
    const std::vector<int32_t> list = ids_of(ids);
    const Result result = checked<Result>([&](di_codec_error** error) {
      return di_codec_decode(handle_.get(), list.data(), list.size(), skip_special ? 1 : 0, error);
    });
    return str_of(di_codec_result_text(result.get()));
  }
  int vocab_size() const { return di_codec_tokenizer_vocab_size(handle_.get()); }
  size_t memory_bytes() const { return di_codec_tokenizer_memory(handle_.get()); }
  const di_codec_tokenizer* get() const { return handle_.get(); }

 private:
  explicit Tokenizer(TokenizerHandle handle) : handle_(std::move(handle)) {}

  static std::string renames_of(const py::dict& renames) {
    py::dict named;
    for (const auto& [id, spelling] : renames) named[py::str(id)] = spelling;
    return json_text(named);
  }
  template <class Encode>
  py::list encoded(const py::str& text, Encode call) const {
    const std::string_view utf8 = utf8_of(text);
    const Result result = checked<Result>([&](di_codec_error** error) {
      const py::gil_scoped_release unlocked;
      return call(handle_.get(), utf8.data(), utf8.size(), error);
    });
    return list_of(di_codec_result_ids(result.get()));
  }

  TokenizerHandle handle_;
};

class Prompt {
 public:
  explicit Prompt(PromptHandle handle) : handle_(std::move(handle)) {}
  py::str text() const { return str_of(di_codec_prompt_text(handle_.get())); }
  std::vector<std::pair<size_t, size_t>> ranges() const {
    const di_codec_range* ranges = nullptr;
    const size_t n = di_codec_prompt_ranges(handle_.get(), &ranges);
    std::vector<std::pair<size_t, size_t>> out;
    for (size_t i = 0; i < n; ++i) out.emplace_back(ranges[i].begin, ranges[i].end);
    return out;
  }
  py::object images() const {
    return py::module_::import("json").attr("loads")(str_of(di_codec_prompt_images(handle_.get())));
  }

 private:
  PromptHandle handle_;
};

di_codec_api api_of(std::string_view name) {
  if (name == "chat") return DI_CODEC_CHAT;
  if (name == "responses") return DI_CODEC_RESPONSES;
  if (name == "messages") return DI_CODEC_MESSAGES;
  throw py::value_error("api: expected chat, responses or messages");
}

// Options once read, for many requests.
class Options {
 public:
  explicit Options(const py::kwargs& members) {
    const std::string json = json_text(members);
    handle_ = checked<OptionsHandle>(
        [&](di_codec_error** error) { return di_codec_options_new(json.data(), json.size(), error); });
  }
  const di_codec_options* get() const { return handle_.get(); }

 private:
  OptionsHandle handle_;
};

class Request {
 public:
  Request(std::string_view api, const py::object& body, const Options* options) {
    const di_codec_api kind = api_of(api);
    const std::string text = PyDict_Check(body.ptr()) ? json_text(body) : std::string();
    const std::string_view utf8 = PyDict_Check(body.ptr()) ? std::string_view(text) : utf8_of(body);
    handle_ = checked<RequestHandle>([&](di_codec_error** error) {
      const py::gil_scoped_release unlocked;
      return di_codec_convert(kind, utf8.data(), utf8.size(), options != nullptr ? options->get() : nullptr, error);
    });
  }

  py::object describe() const {
    return json_value(
        checked<Result>([&](di_codec_error** error) { return di_codec_request_describe(handle_.get(), error); }));
  }
  const char* model_version() const { return di_codec_request_is_v41(handle_.get()) != 0 ? "v41" : "v4"; }
  Prompt render() const {
    return Prompt(checked<PromptHandle>([&](di_codec_error** error) { return di_codec_render(handle_.get(), error); }));
  }
  py::list encode(const Tokenizer& tokenizer) const {
    const Result result = checked<Result>([&](di_codec_error** error) {
      const py::gil_scoped_release unlocked;
      return di_codec_encode_request(handle_.get(), tokenizer.get(), error);
    });
    return list_of(di_codec_result_ids(result.get()));
  }
  uint32_t resolve_max_tokens(uint64_t prompt_tokens, uint64_t context_limit) const {
    uint32_t tokens = 0;
    checked_status([&](di_codec_error** error) {
      return di_codec_resolve_max_tokens(handle_.get(), prompt_tokens, context_limit, &tokens, error);
    });
    return tokens;
  }
  const di_codec_request* get() const { return handle_.get(); }

 private:
  RequestHandle handle_;
};

class Output {
 public:
  Output(const Request& request, const Tokenizer* tokenizer, const py::kwargs& settings) {
    const std::string json = json_text(settings);
    handle_ = checked<OutputHandle>([&](di_codec_error** error) {
      return di_codec_output_new(request.get(), tokenizer != nullptr ? tokenizer->get() : nullptr, json.data(),
                                 json.size(), error);
    });
  }

  py::list ready(uint32_t prompt_tokens, uint32_t cache_hit_tokens, const std::optional<std::string>& fingerprint) {
    checked_status([&](di_codec_error** error) {
      return di_codec_output_ready(handle_.get(), prompt_tokens, cache_hit_tokens,
                                   fingerprint ? fingerprint->c_str() : nullptr, error);
    });
    return events();
  }
  using Logprobs = std::vector<std::pair<float, std::vector<std::pair<int32_t, float>>>>;
  py::list tokens(const py::object& ids, const std::optional<Logprobs>& logprobs) {
    const std::vector<int32_t> list = ids_of(ids);
    std::vector<di_codec_logprob> entries;
    std::vector<std::vector<di_codec_top_logprob>> tops;
    const di_codec_logprob none = {};  // an empty list is a list
    if (logprobs) {
      for (const auto& [value, top] : *logprobs) {
        auto& kept = tops.emplace_back();
        for (const auto& [id, logprob] : top) kept.push_back({id, logprob});
      }
      for (size_t i = 0; i < tops.size(); ++i)
        entries.push_back({(*logprobs)[i].first, tops[i].data(), tops[i].size()});
    }
    checked_status([&](di_codec_error** error) {
      return di_codec_output_tokens(handle_.get(), list.data(), list.size(),
                                    !logprobs         ? nullptr
                                    : entries.empty() ? &none
                                                      : entries.data(),
                                    entries.size(), error);
    });
    return events();
  }
  py::list text(const py::str& content, uint32_t token_count) {
    const std::string_view utf8 = utf8_of(content);
    checked_status([&](di_codec_error** error) {
      return di_codec_output_text(handle_.get(), utf8.data(), utf8.size(), token_count, error);
    });
    return events();
  }
  py::list finish(std::string_view reason) {
    di_codec_finish_reason value = DI_CODEC_STOP;
    if (reason == "Length") {
      value = DI_CODEC_LENGTH;
    } else if (reason == "ContentFilter") {
      value = DI_CODEC_CONTENT_FILTER;
    } else if (reason != "Stop") {
      throw py::value_error("reason: expected Stop, Length or ContentFilter");
    }
    checked_status([&](di_codec_error** error) { return di_codec_output_finish(handle_.get(), value, error); });
    return events();
  }
  py::list close() {
    checked_status([&](di_codec_error** error) { return di_codec_output_close(handle_.get(), error); });
    return events();
  }
  bool done() const { return di_codec_output_done(handle_.get()) != 0; }
  py::str body() const {
    const Result result =
        checked<Result>([&](di_codec_error** error) { return di_codec_output_body(handle_.get(), error); });
    return str_of(di_codec_result_text(result.get()));
  }
  py::object end_of_stream() const {
    const di_codec_bytes line = di_codec_output_end_of_stream(handle_.get());
    return line.size == 0 ? py::object(py::none()) : py::object(str_of(line));
  }

 private:
  // [(SSE event name or None, data)]
  py::list events() {
    const size_t n = di_codec_output_event_count(handle_.get());
    py::list out(n);
    for (size_t i = 0; i < n; ++i) {
      const di_codec_event event = di_codec_output_event(handle_.get(), i);
      py::object name = event.name.size == 0 ? py::object(py::none()) : py::object(str_of(event.name));
      PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), py::make_tuple(name, str_of(event.data)).release().ptr());
    }
    return out;
  }

  OutputHandle handle_;
};

uint32_t image_token_count(uint32_t width, uint32_t height) {
  uint32_t count = 0;
  checked_status([&](di_codec_error** error) { return di_codec_image_token_count(width, height, &count, error); });
  return count;
}

}  // namespace

PYBIND11_MODULE(codec, m) {
  m.doc() = "The token codec: API requests to prompts and token ids, token ids to API events.";
  m.attr("ConversionError") = py::reinterpret_borrow<py::object>(conversion_error_type());

  py::class_<Tokenizer>(m, "Tokenizer", "A tokenizer.json of the DeepSeek family.")
      .def_static("load", &Tokenizer::load, py::arg("path"), py::arg("rename_added") = py::dict(),
                  "Reads a tokenizer.json or the folder that holds it; rename_added: {id: new spelling}.")
      .def_static("from_json", &Tokenizer::from_json, py::arg("text"), py::arg("rename_added") = py::dict())
      .def("encode", &Tokenizer::encode, py::arg("text"), "Ids, special spellings recognised.")
      .def("encode_plain", &Tokenizer::encode_plain, py::arg("text"), "Ids of ordinary text.")
      .def("decode", &Tokenizer::decode, py::arg("ids"), py::arg("skip_special") = false)
      .def_property_readonly("vocab_size", &Tokenizer::vocab_size)
      .def_property_readonly("memory_bytes", &Tokenizer::memory_bytes);

  py::class_<Options>(m, "Options", "Options of request conversion; keywords as docs/codec.md lists them.")
      .def(py::init<const py::kwargs&>());

  py::class_<Prompt>(m, "Prompt")
      .def_property_readonly("text", &Prompt::text)
      .def_property_readonly("special_byte_ranges", &Prompt::ranges, "UTF-8 byte ranges of explicit special tokens.")
      .def_property_readonly("image_sources", &Prompt::images);

  py::class_<Request>(m, "Request", "A converted request of the API chat, responses or messages.")
      .def(py::init<std::string_view, const py::object&, const Options*>(), py::arg("api"), py::arg("body"),
           py::arg("options") = nullptr)
      .def_property_readonly("model_version", &Request::model_version)
      .def("describe", &Request::describe, "Conversation, inference and parsing options as plain values.")
      .def("render", &Request::render)
      .def("encode", &Request::encode, py::arg("tokenizer"), "The prompt's ids.")
      .def("resolve_max_tokens", &Request::resolve_max_tokens, py::arg("prompt_tokens"), py::arg("context_limit"));

  py::class_<Output>(m, "Output", "Output of the model to events [(name or None, data)] and the response body.")
      .def(py::init<const Request&, const Tokenizer*, const py::kwargs&>(), py::arg("request"),
           py::arg("tokenizer") = nullptr, "Keywords: id, model, created, signature, tool_id_seed.")
      .def("ready", &Output::ready, py::arg("prompt_tokens") = 0, py::arg("prompt_cache_hit_tokens") = 0,
           py::arg("system_fingerprint") = py::none())
      .def("tokens", &Output::tokens, py::arg("ids"), py::arg("logprobs") = py::none())
      .def("text", &Output::text, py::arg("content"), py::arg("token_count") = 0)
      .def("finish", &Output::finish, py::arg("reason"))
      .def("close", &Output::close)
      .def_property_readonly("done", &Output::done)
      .def("body", &Output::body)
      .def_property_readonly("end_of_stream", &Output::end_of_stream);

  m.def("image_token_count", &image_token_count, py::arg("width"), py::arg("height"),
        "Tokens of an image in a V4.1 prompt.");
}
