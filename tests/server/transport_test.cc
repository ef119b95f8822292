// Content codings, trace headers, forms and files: the parts of the listener's surroundings that are pure.
#include <gtest/gtest.h>

#include "base/json.h"
#include "server/compress.h"
#include "server/file_store.h"
#include "server/trace_span.h"

namespace di::server {
namespace {

TEST(Compress, GzipComesBackWithinTheLimit) {
  const std::string text = std::string(100'000, 'a') + "end";
  const std::string packed = gzip(text);
  EXPECT_LT(packed.size(), 1000U);
  EXPECT_EQ(decode_content("gzip", packed, text.size()).value(), text);
  EXPECT_EQ(decode_content(" X-GZIP ", packed, text.size()).value(), text);
  EXPECT_EQ(decode_content("gzip", packed + packed, 2 * text.size()).value(), text + text)
      << "members follow each other";
  EXPECT_EQ(decode_content("gzip", packed, text.size() - 1).error().code, Errc::kResourceExhausted);
  for (size_t n = 0; n < packed.size(); n += 7) EXPECT_FALSE(decode_content("gzip", packed.substr(0, n), 1 << 20)) << n;
  EXPECT_FALSE(decode_content("gzip", packed + "x", 1 << 20));
  EXPECT_FALSE(decode_content("zstd", packed, 1 << 20));
  EXPECT_FALSE(decode_content("zstd", "", 1 << 20));
  EXPECT_NE(decode_content("br", packed, 1 << 20).error().message.find("expected gzip or zstd"), std::string::npos);
  EXPECT_EQ(decode_content("gzip", gzip(""), 0).value(), "");
}

TEST(Compress, WhoTakesGzip) {
  for (const char* yes : {"gzip", "GZIP", "deflate, gzip", "gzip;q=0.1", "*", "br;q=1, gzip; q=0.5"})
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  for (const char* no : {"", "identity", "br", "gzip;q=0", "gzip;q=0.0, br", "*;q=0", "xgzip"})
    EXPECT_FALSE(accepts_gzip(no)) << no;
}

TEST(TraceParent, OfTheStandardsForm) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const std::string parent = "00f067aa0ba902b7";
  const auto found = parse_traceparent("00-" + trace + "-" + parent + "-01");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->trace_id, trace);
  EXPECT_EQ(found->parent_id, parent);
  EXPECT_TRUE(found->sampled);
  EXPECT_FALSE(parse_traceparent("00-" + trace + "-" + parent + "-02")->sampled);
  EXPECT_TRUE(parse_traceparent("01-" + trace + "-" + parent + "-0b-later"));
  for (const std::string& bad :
       {std::string(), "00-" + trace + "-" + parent, "ff-" + trace + "-" + parent + "-01",
        "00-" + trace + "-" + parent + "-01-x", "00-" + std::string(32, '0') + "-" + parent + "-01",
        "00-" + trace + "-" + std::string(16, '0') + "-01", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + parent + "-01",
        "00_" + trace + "-" + parent + "-01"})
    EXPECT_FALSE(parse_traceparent(bad)) << bad;
}

TEST(TraceSpans, AreJsonWithTheirStages) {
  RequestRecord record;
  record.id = "r\"1";
  record.route = "/v1/completions";
  record.received_ns = 100;
  record.sent_ns = 5000;
  record.finish = "error";
  record.error = "internal_error";
  TimelineView line;
  line.spans.push_back({Stage::kQueue, 200, 300, 0, {}});
  for (int64_t i = 0; i < 250; ++i) line.steps.push_back({1000 + i, 2});
  line.total_steps = 250;
  const SpanIds ids{"4bf92f3577b34da6a3ce929d0e0e4736", "", "00f067aa0ba902b7"};
  const Json spans = parse_json("[" + request_spans(record, line, ids, 1'000'000) + "]").value();
  ASSERT_EQ(spans.size(), 3U);
  const Json& request = spans.as_array()[0];
  EXPECT_EQ(request.find("parentSpanId"), nullptr);
  EXPECT_EQ(request.find("startTimeUnixNano")->as_string(), "1000100");
  EXPECT_EQ(request.find("status")->find("code")->to_i64(), 2);
  EXPECT_EQ(spans.as_array()[1].find("name")->as_string(), "queue");
  EXPECT_EQ(spans.as_array()[2].find("events")->size(), 2U);
}

TEST(Form, PartsAndWhatIsMalformed) {
  const std::string body =
      "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nvalue\r\n--b\r\n"
      "content-disposition: form-data; name=\"file\"; filename=\"x \\\"y\\\".png\"\r\nContent-Type: image/png\r\n\r\n"
      "bytes\r\n--c\r\n\r\n--b\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--b--\r\n";
  const auto parts = parse_form("multipart/form-data; boundary=b", body);
  ASSERT_TRUE(parts) << parts.error().message;
  ASSERT_EQ(parts->size(), 3U);
  EXPECT_EQ((*parts)[0].name, "a");
  EXPECT_EQ((*parts)[0].content, "value");
  EXPECT_EQ((*parts)[1].filename, "x \"y\".png");
  EXPECT_EQ((*parts)[1].content, "bytes\r\n--c\r\n");
  EXPECT_EQ((*parts)[2].name, "empty");
  EXPECT_EQ((*parts)[2].content, "");
  for (size_t n = 0; n + 4 < body.size(); ++n)
    EXPECT_FALSE(parse_form("multipart/form-data; boundary=b", body.substr(0, n))) << n;
  EXPECT_FALSE(parse_form("multipart/form-data", body));
  EXPECT_FALSE(parse_form("text/plain; boundary=b", body));
}

TEST(Files, AreBoundedAndExpire) {
  FileStore store(10);
  const auto file = [](const char* id, const char* tenant, size_t bytes, int64_t expires) {
    return StoredFile{id,          tenant, "n",     "user_data",
                      "image/png", 0,      expires, std::make_shared<const std::string>(bytes, 'x')};
  };
  EXPECT_TRUE(store.add(file("1", "a", 4, 100), 0));
  EXPECT_TRUE(store.add(file("2", "b", 6, 0), 0));
  EXPECT_EQ(store.add(file("3", "a", 1, 0), 99).error().code, Errc::kResourceExhausted);
  EXPECT_FALSE(store.get("b", "1", 0));
  EXPECT_FALSE(store.remove("b", "1"));
  EXPECT_TRUE(store.get("a", "1", 99));
  EXPECT_FALSE(store.get("a", "1", 100));
  EXPECT_TRUE(store.add(file("3", "a", 4, 0), 100)) << "what expired leaves room";
  EXPECT_EQ(store.all("a", 100).size(), 1U);
  EXPECT_TRUE(store.remove("b", "2"));
  EXPECT_TRUE(store.all("b", 100).empty());
}

}  // namespace
}  // namespace di::server
