// Images: layout, decoding, canvases, limits, links (vision.md §2-4, server.md on links).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/sha256.h"
#include "codec/image/canvas.h"
#include "codec/image/resolve.h"
#include "codec/image/url_policy.h"
#include "codec/vectors.h"
#include "support/folders.h"

namespace di::codec {
namespace {

using testing::text_of;

std::string vision_dir() {
  return std::string(di::test::kVectors) + "/vision";
}

#define SKIP_WITHOUT_VISION_VECTORS() \
  if (!std::filesystem::is_directory(vision_dir())) GTEST_SKIP() << "reference vectors are absent: " << vision_dir()

std::string file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

std::vector<Json> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) out.push_back(*parse_json(line));
  EXPECT_FALSE(out.empty()) << path;
  return out;
}

uint32_t number(const Json& list, size_t at) {
  return static_cast<uint32_t>(*list.as_array()[at].to_u64());
}

std::string rgb_digest(const Pixels& pixels) {
  return to_hex(sha256({reinterpret_cast<const char*>(pixels.rgb.data()), pixels.rgb.size()}));
}

std::string base64(std::string_view bytes, bool padding = true) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) {
      if (k <= n) {
        out.push_back(kAlphabet[bits >> (18 - 6 * k) & 63]);
      } else if (padding) {
        out.push_back('=');
      }
    }
  }
  return out;
}

// A PNG that says it has this size and holds no pixels.
std::string png_header(uint32_t width, uint32_t height) {
  std::string out("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16);
  for (const uint32_t side : {width, height}) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(side >> shift));
  }
  return out + std::string("\x08\x02\0\0\0\0\0\0\0", 9);
}

ImageSource source_of(std::string location, std::string path = ".messages[0]") {
  ImageSource source;
  source.kind = location.starts_with("data") ? ImageSource::Kind::kDataUrl : ImageSource::Kind::kUrl;
  source.location = std::move(location);
  source.path = std::move(path);
  return source;
}

TEST(Image, LayoutsAreThoseOfTheVectors) {
  SKIP_WITHOUT_VISION_VECTORS();
  for (const Json& c : lines_of(vision_dir() + "/layout.jsonl")) {
    const auto w = static_cast<uint32_t>(*c.find("w")->to_u64());
    const auto h = static_cast<uint32_t>(*c.find("h")->to_u64());
    const auto list = [](const ImageLayout& l) {
      Json out;
      for (const uint32_t n : {l.width, l.height, l.columns, l.rows, l.tokens}) out.push_back(Json(n));
      return out;
    };
    EXPECT_EQ(list(image_layout_once(w, h)), *c.find("once")) << w << "x" << h;
    const auto fixed = image_layout(w, h);
    ASSERT_TRUE(fixed);
    EXPECT_EQ(list(*fixed), *c.find("fixed")) << w << "x" << h;
    const auto webp = image_layout_for_webp(w, h);
    if (const Json* expected = c.find_value("webp_fit")) {
      ASSERT_TRUE(webp) << w << "x" << h;
      EXPECT_EQ(webp->width, number(*expected, 0)) << w << "x" << h;
      EXPECT_EQ(webp->height, number(*expected, 1)) << w << "x" << h;
    }
  }
}

// Decoding, detail, fit, resizing, padding, and the WebP round trip: the same bytes as the service's. The vectors also
// have a digest of the canvas before WebP, of one that was rebuilt with another build of OpenCV and accepted for having
// the same WebP bytes. Two of them are not ours: webp_anim_64x48 was rebuilt without the row tail of vision.md §3.3
// (one byte differs, in the last column), gray_158x8000 is none of the forms of that section. Any other difference, or
// none, fails.
TEST(Image, CanvasesAreThoseOfTheService) {
  SKIP_WITHOUT_VISION_VECTORS();
  size_t compared = 0;
  std::vector<std::string> rebuilt_differently;
  for (const Json& c : lines_of(vision_dir() + "/preprocess.jsonl")) {
    const std::string& id = text_of(c, "id");
    const Json& expected = *c.find("service");
    const std::string bytes = file_bytes(vision_dir() + "/" + text_of(c, "file"));
    auto pixels = decode_image(bytes, ImageBounds{});
    ASSERT_TRUE(pixels) << id << ": " << pixels.error().message;
    EXPECT_EQ(pixels->width, number(*c.find("src"), 0)) << id;
    EXPECT_EQ(pixels->height, number(*c.find("src"), 1)) << id;
    const ImageDetail detail = text_of(c, "detail") == "low" ? ImageDetail::kLow : ImageDetail::kHigh;
    const auto layout = layout_for_detail({pixels->width, pixels->height}, detail);
    ASSERT_TRUE(layout) << id;
    EXPECT_EQ(layout->width, *expected.find("width")->to_u64()) << id;
    EXPECT_EQ(layout->height, *expected.find("height")->to_u64()) << id;
    EXPECT_EQ(layout->tokens, *expected.find("tokens")->to_u64()) << id;
    const auto canvas = fit_canvas(*pixels, detail);
    ASSERT_TRUE(canvas) << id;
    if (rgb_digest(*canvas) != text_of(expected, "pre_webp_rgb_sha256")) rebuilt_differently.push_back(id);
    const auto webp = encode_webp(*canvas);
    ASSERT_TRUE(webp) << id;
    EXPECT_EQ(to_hex(sha256(*webp)), text_of(expected, "webp_sha256")) << id;
    const auto whole = decode_image(*webp, ImageBounds{.max_side = 16383, .max_pixels = 0});
    ASSERT_TRUE(whole) << id;
    EXPECT_EQ(rgb_digest(*whole), text_of(expected, "canvas_rgb_sha256")) << id;
    EXPECT_EQ(to_hex(image_digest(*whole)), text_of(expected, "image_digest")) << id;
    if (compared % 10 == 0) {  // the same in one call
      EXPECT_EQ(rgb_digest(*service_canvas(*std::move(pixels), detail)), rgb_digest(*whole)) << id;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 50U);
  std::sort(rebuilt_differently.begin(), rebuilt_differently.end());
  EXPECT_EQ(rebuilt_differently, (std::vector<std::string>{"gray_158x8000", "webp_anim_64x48"}));
}

TEST(Image, HostileFilesGetTheServicesVerdict) {
  SKIP_WITHOUT_VISION_VECTORS();
  const Json cases = *parse_json_file(vision_dir() + "/hostile.json");
  size_t accepted = 0;
  for (const Json& c : cases.as_array()) {
    const std::string bytes = file_bytes(vision_dir() + "/" + text_of(c, "file"));
    const auto pixels = decode_image(bytes, ImageBounds{});
    const bool expected = c.find("service")->find("ok")->as_bool();
    EXPECT_EQ(pixels.has_value(), expected)
        << text_of(c, "id") << ": " << (pixels ? "accepted" : pixels.error().message);
    accepted += pixels ? 1 : 0;
  }
  EXPECT_EQ(accepted, 14U);
}

// Every prefix of a file, and every file with a byte changed here and there: an error or an image, never more.
TEST(Image, DamagedFilesAreHarmless) {
  SKIP_WITHOUT_VISION_VECTORS();
  for (const char* name : {"p_trns_90x120.png", "rgb16_80x60.png", "jpg_progressive_313x211.jpg", "cmyk_150x100.jpg",
                           "gif_interlaced_64x48.gif", "webp_anim_64x48.webp", "webp_lossless_rgba_90x60.webp"}) {
    const std::string bytes = file_bytes(vision_dir() + "/images/" + name);
    for (size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 60) {
      static_cast<void>(decode_image(std::string_view(bytes).substr(0, n), ImageBounds{}));
      std::string changed = bytes;
      changed[n] = static_cast<char>(changed[n] ^ 0x55);
      const auto pixels = decode_image(changed, ImageBounds{});
      if (pixels) {
        EXPECT_EQ(pixels->rgb.size(), size_t{3} * pixels->width * pixels->height) << name << " at " << n;
      }
    }
  }
}

TEST(Image, SizesAreCheckedBeforeDecoding) {
  const auto verdict = [](uint32_t w, uint32_t h) {
    const auto pixels = decode_image(png_header(w, h), ImageBounds{});
    return pixels ? std::string("accepted") : pixels.error().message;
  };
  EXPECT_EQ(verdict(30000, 30000), "image of 30000 x 30000 pixels: at most 8192 a side");
  EXPECT_EQ(verdict(8000, 8000), "image of 8000 x 8000 pixels: at most 41943040 in all");
  EXPECT_EQ(verdict(0, 8000), "image of 0 x 8000 pixels is empty");
  EXPECT_EQ(verdict(64, 64), "the PNG image is damaged");
}

class Resolve : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_VISION_VECTORS();
    png_ = file_bytes(vision_dir() + "/images/rgb_100x100.png");
  }
  std::string data_url(const std::string& head = "image/png;base64") const {
    return "data:" + head + "," + base64(png_);
  }
  // The error's message, or the number of tokens.
  static std::string resolve(const std::vector<ImageSource>& sources, ImageQuota& quota, const ImageFetcher& fetch = {},
                             const ImageLimits& limits = {}) {
    const auto images = resolve_images(sources, limits, ResolveOptions{}, fetch, quota);
    if (!images) return images.error().message;
    uint32_t tokens = 0;
    for (const ResolvedImage& image : *images) tokens += image.layout.tokens;
    return std::to_string(tokens);
  }
  static std::string resolve(const std::vector<ImageSource>& sources) {
    ImageQuota quota;
    return resolve(sources, quota);
  }
  std::string png_;
};

constexpr std::string_view kUnsupported =
    ": You have uploaded an unsupported image. Please make sure your image is valid and has one of the following "
    "formats: webp, png, jpeg, and gif.";

TEST_F(Resolve, DataUrlsAreReadAsTheServiceReadsThem) {
  const std::string bad = ".messages[0].image[0]" + std::string(kUnsupported);
  EXPECT_EQ(resolve({source_of(data_url())}), "184");
  EXPECT_EQ(resolve({source_of(data_url("image/jpg;base64"))}), "184");
  EXPECT_EQ(resolve({source_of(data_url("IMAGE/PNG;x=1;base64"))}), "184");
  EXPECT_EQ(resolve({source_of("data:image/png;base64," + base64(png_, false))}), "184");
  std::string broken = base64(png_);
  for (size_t at = 60; at < broken.size(); at += 62) broken.insert(at, "\r\n");
  EXPECT_EQ(resolve({source_of("data:image/png;base64," + broken)}), "184");
  std::string percent;
  for (const char c : png_) percent += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  EXPECT_EQ(resolve({source_of("data:image/png," + percent)}), "184");
  EXPECT_EQ(resolve({source_of(data_url("image/bmp;base64"))}), bad);
  EXPECT_EQ(resolve({source_of("data:image/png;base64,A")}), bad);
  EXPECT_EQ(resolve({source_of("data:image/png;base64,")}), bad);
  EXPECT_EQ(resolve({source_of("data:image/png;base64")}), bad);
  EXPECT_EQ(resolve({source_of(data_url()), source_of("data:image/bmp,x")}),
            ".messages[0].image[1]" + std::string(kUnsupported));
}

TEST_F(Resolve, LimitsAreThoseOfTheService) {
  ImageQuota quota;
  const ImageSource small = source_of(data_url());
  EXPECT_EQ(resolve(std::vector<ImageSource>(601, small), quota),
            ".messages[0]: Too many images: max 600 images per request, got 601");
  EXPECT_EQ(quota.images, 0U);
  EXPECT_EQ(resolve(std::vector<ImageSource>(14, small), quota), "2576");
  EXPECT_EQ(quota.images, 14U);
  EXPECT_EQ(quota.bytes, 14 * png_.size());
  const auto wide = [&](uint32_t w) { return source_of("data:image/png;base64," + base64(png_header(w, 1))); };
  // The header decides: no pixels follow it, so within the limit the file is damaged, and beyond it it is too large.
  // Both read the same to the client; the fifteenth image of a request may have 4096 pixels a side.
  EXPECT_EQ(resolve({wide(5000)}, quota), ".messages[0].image[0]" + std::string(kUnsupported));
  EXPECT_EQ(quota.images, 14U);

  ImageLimits limits;
  limits.max_image_bytes = png_.size() - 1;
  quota = {};
  EXPECT_EQ(resolve({small}, quota, {}, limits), ".messages[0].image[0]: image file size exceeds limit 0 MB");
  limits = {};
  limits.max_request_bytes = png_.size() * 5 / 2;
  EXPECT_EQ(resolve({small, small, source_of(data_url(), ".messages[2]")}, quota, {}, limits),
            ".messages[2]: Total image size exceeds the limit: max 0 MB per request, got 0 MB");
}

// What is known is not decoded again: facts put in by the test come back. Other scopes, details and bytes are unknown,
// the bounds of the request hold all the same, and the number of entries is bounded.
TEST_F(Resolve, KnownImagesAreNotDecodedAgain) {
  ImageCache cache(3);
  ResolveOptions options;
  options.digests = true;
  options.cache = &cache;
  options.cache_scope = "tenant";
  const ImageSource small = source_of(data_url());
  const auto resolved = [&](const ImageSource& source, const ImageLimits& limits = {}) {
    ImageQuota quota;
    auto images = resolve_images({&source, 1}, limits, options, {}, quota);
    return images ? std::optional((*images)[0]) : std::nullopt;
  };
  const auto first = resolved(small);
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->canvas.rgb.empty());
  EXPECT_NE(first->digest, Sha256());
  EXPECT_EQ(cache.find("tenant", sha256(png_), ImageDetail::kAuto)->digest, first->digest);
  EXPECT_FALSE(cache.find("tenant", sha256(png_), ImageDetail::kLow));
  EXPECT_FALSE(cache.find("other", sha256(png_), ImageDetail::kHigh));

  const std::string other = "no image at all";
  cache.put("tenant", sha256(other), ImageDetail::kHigh, {{5000, 10}, first->layout, first->digest});
  const ImageSource known = source_of("data:image/png;base64," + base64(other));
  ASSERT_TRUE(resolved(known));
  EXPECT_EQ(resolved(known)->size.width, 5000U);
  ImageLimits limits;
  limits.max_side = 4999;
  EXPECT_FALSE(resolved(known, limits));
  options.cache_scope = "other";
  EXPECT_FALSE(resolved(known));
  options.cache_scope = "tenant";

  ASSERT_TRUE(resolved(small));  // used last, so the other one leaves first
  for (const char* text : {"a", "b"}) cache.put("tenant", sha256(text), ImageDetail::kHigh, {});
  EXPECT_FALSE(resolved(known));
  EXPECT_TRUE(cache.find("tenant", sha256(png_), ImageDetail::kHigh));
}

TEST_F(Resolve, LinksNeedAFetcher) {
  ImageQuota quota;
  const std::string url = "https://example.org/a.png";
  EXPECT_EQ(resolve({source_of(url)}, quota), ".messages[0].image[0]: Failed to download image from " + url);
  const ImageFetcher fetch = [&](const std::string& asked, size_t max_bytes) -> Result<std::string> {
    EXPECT_EQ(asked, url);
    EXPECT_EQ(max_bytes, size_t{32} << 20);
    return png_;
  };
  EXPECT_EQ(resolve({source_of(url)}, quota, fetch), "184");
  const ImageFetcher large = [](const std::string&, size_t) -> Result<std::string> {
    return fail(Errc::kResourceExhausted, "too large");
  };
  EXPECT_EQ(resolve({source_of(url)}, quota, large), ".messages[0].image[0]: image file size exceeds limit 32 MB");
  EXPECT_EQ(resolve({source_of("ftp://x/y.png")}, quota, fetch), ".messages[0]: invalid url: \"ftp://x/y.png\"");
  const std::string longer = "http://" + std::string(8200, 'x');
  EXPECT_EQ(resolve({source_of(longer)}, quota, fetch),
            ".messages[0]: external link length 8207 too long, max link length 8192");
}

TEST_F(Resolve, FilesNeedAReaderOfThem) {
  ImageSource source = source_of("file-1");
  source.kind = ImageSource::Kind::kFile;
  ResolveOptions options;
  ImageLimits limits;
  const auto resolved = [&] {
    ImageQuota quota;
    const auto images = resolve_images({&source, 1}, limits, options, {}, quota);
    return images ? std::to_string((*images)[0].layout.tokens) : images.error().message;
  };
  const std::string unknown = ".messages[0].image[0]: no file with id \"file-1\"";
  EXPECT_EQ(resolved(), unknown);
  std::shared_ptr<const std::string> file;
  options.files = [&](const std::string& id) { return id == "file-1" ? file : nullptr; };
  EXPECT_EQ(resolved(), unknown);
  file = std::make_shared<const std::string>(png_);
  EXPECT_EQ(resolved(), "184");
  limits.max_image_bytes = png_.size() - 1;
  EXPECT_EQ(resolved(), ".messages[0].image[0]: image file size exceeds limit 0 MB");
  limits = {};
  file = std::make_shared<const std::string>("no image");
  EXPECT_EQ(resolved(), ".messages[0].image[0]" + std::string(kUnsupported));
}

TEST(Image, PlaceholdersBecomeAsManyIdsAsTheImagesTake) {
  SKIP_WITHOUT_VISION_VECTORS();
  const Json cases = *parse_json_file(vision_dir() + "/prompt/expand.json");
  for (const Json& c : cases.as_array()) {
    std::vector<ResolvedImage> images;
    uint64_t adjustment = 0;
    for (const Json& item : c.find("images")->as_array()) {
      ResolvedImage image;
      image.size = {static_cast<uint32_t>(*item.find("width")->to_u64()),
                    static_cast<uint32_t>(*item.find("height")->to_u64())};
      image.layout = *layout_for_detail(image.size, ImageDetail::kHigh);
      adjustment += image.layout.tokens - 1;
      images.push_back(image);
    }
    EXPECT_EQ(adjustment, *c.find("image_token_adjustment")->to_u64()) << text_of(c, "case");
    const auto prompt = expand_images(testing::ids_of(*c.find("prompt_ids")), 129264, images);
    ASSERT_TRUE(prompt) << text_of(c, "case");
    std::vector<TokenId> expected;
    for (const Json& run : c.find("expanded_ids_rle_reference")->as_array()) {
      expected.insert(expected.end(), number(run, 1), static_cast<TokenId>(number(run, 0)));
    }
    EXPECT_EQ(prompt->ids, expected) << text_of(c, "case");
    Json spans{Json::Array()};
    for (const ImageSpan& span : prompt->spans) {
      Json entry;
      entry.push_back(Json(span.begin));
      entry.push_back(Json(span.length));
      spans.push_back(entry);
    }
    EXPECT_EQ(spans, *c.find("spans")) << text_of(c, "case");
    images.push_back({});
    EXPECT_FALSE(expand_images(testing::ids_of(*c.find("prompt_ids")), 129264, images));
  }
}

TEST(Links, OnlyPlainUrlsAreRead) {
  const auto host = [](std::string_view url) {
    const auto parsed = parse_fetch_url(url);
    return parsed ? fmt::format("{}:{} {}{}", parsed->host, parsed->port, parsed->target, parsed->tls ? " tls" : "")
                  : "refused";
  };
  EXPECT_EQ(host("https://Example.ORG/a?b=c#d"), "example.org:443 /a?b=c tls");
  EXPECT_EQ(host("http://example.org."), "example.org:80 /");
  EXPECT_EQ(host("http://example.org?x"), "example.org:80 /?x");
  EXPECT_EQ(host("http://[2606:4700::1]:8080/x"), "2606:4700::1:8080 /x");
  EXPECT_EQ(host("http://8.8.8.8/x"), "8.8.8.8:80 /x");
  for (const char* url : {"file:///etc/passwd",
                          "ftp://example.org/",
                          "http:/example.org",
                          "http://",
                          "http:///x",
                          "http://user@example.org/",
                          "http://a:b@example.org/",
                          "http://example.org\\@evil.org/",
                          "http://exa mple.org/",
                          "http://example.org/\x01",
                          "http://ex\xC3\xA4mple.org/",
                          "http://example.org:0/",
                          "http://example.org:99999/",
                          "http://example.org:/",
                          "http://2130706433/",
                          "http://0x7f000001/",
                          "http://0x7f.1/",
                          "http://127.1/",
                          "http://0177.0.0.1/",
                          "http://[::1",
                          "http://[::ffff:1.2.3.4%25eth0]/",
                          "http://.example.org/",
                          "http://a..b/",
                          "gopher://example.org/",
                          "http://example.org/\r\nHost: x"}) {
    EXPECT_EQ(host(url), "refused") << url;
  }
}

TEST(Links, OnlyAllowedHostsAndPublicAddressesAreReached) {
  FetchPolicy policy;
  const auto verdict = [&](std::string_view url) { return check_host(policy, *parse_fetch_url(url)).has_value(); };
  policy.allow_domains = {"example.org", "*.cdn.example", "8.8.8.8", "127.0.0.1", "::1"};
  EXPECT_FALSE(verdict("http://example.org/"));  // off by default
  policy.enabled = true;
  EXPECT_TRUE(verdict("http://example.org/"));
  EXPECT_TRUE(verdict("http://a.b.cdn.example/"));
  EXPECT_FALSE(verdict("http://cdn.example/"));
  EXPECT_FALSE(verdict("http://evilcdn.example/"));
  EXPECT_FALSE(verdict("http://example.org.evil.net/"));
  EXPECT_TRUE(verdict("http://8.8.8.8/"));
  EXPECT_FALSE(verdict("http://127.0.0.1/"));  // allowed or not
  EXPECT_FALSE(verdict("http://[::1]/"));

  for (const Ipv4 address :
       {Ipv4{127, 0, 0, 1}, Ipv4{10, 1, 2, 3}, Ipv4{172, 16, 0, 1}, Ipv4{172, 31, 255, 255}, Ipv4{192, 168, 0, 1},
        Ipv4{169, 254, 169, 254}, Ipv4{0, 0, 0, 0}, Ipv4{100, 64, 0, 1}, Ipv4{224, 0, 0, 1}, Ipv4{255, 255, 255, 255},
        Ipv4{192, 0, 0, 170}, Ipv4{198, 18, 0, 1}, Ipv4{203, 0, 113, 5}, Ipv4{240, 0, 0, 1}}) {
    EXPECT_FALSE(is_public_address(address)) << fmt::format("{}", fmt::join(address, "."));
    // The same inside IPv6: mapped, NAT64, 6to4, compatible.
    Ipv6 mapped{};
    mapped[10] = mapped[11] = 0xFF;
    Ipv6 nat64{0x00, 0x64, 0xFF, 0x9B};
    Ipv6 six_to_four{0x20, 0x02};
    Ipv6 compatible{};
    for (size_t i = 0; i < 4; ++i)
      mapped[12 + i] = nat64[12 + i] = six_to_four[2 + i] = compatible[12 + i] = address[i];
    EXPECT_FALSE(is_public_address(mapped));
    EXPECT_FALSE(is_public_address(nat64));
    EXPECT_FALSE(is_public_address(six_to_four));
    EXPECT_FALSE(is_public_address(compatible));
  }
  EXPECT_TRUE(is_public_address(Ipv4{8, 8, 8, 8}));
  EXPECT_TRUE(is_public_address(Ipv4{172, 32, 0, 1}));
  EXPECT_TRUE(is_public_address(Ipv4{100, 128, 0, 1}));
  EXPECT_TRUE(is_public_address(Ipv6{0x26, 0x06, 0x47, 0x00}));
  for (const Ipv6 address :
       {Ipv6{}, Ipv6{0xFC}, Ipv6{0xFD}, Ipv6{0xFE, 0x80}, Ipv6{0xFF, 0x02}, Ipv6{0x20, 0x01, 0x0D, 0xB8},
        Ipv6{0x20, 0x01, 0x00, 0x00}, Ipv6{0x00, 0x64, 0xFF, 0x9B, 0x00, 0x01}}) {
    EXPECT_FALSE(is_public_address(address));
  }
}

TEST(Links, RedirectsAreCheckedLikeTheFirstUrl) {
  const FetchUrl from = *parse_fetch_url("https://example.org:444/a/b");
  const auto to = [&](std::string_view location) {
    const auto url = redirect_target(from, location);
    return url ? fmt::format("{}:{}{}", url->host, url->port, url->target) : "refused";
  };
  EXPECT_EQ(to("/c?d"), "example.org:444/c?d");
  EXPECT_EQ(to("https://other.org/c"), "other.org:443/c");
  EXPECT_EQ(to("//other.org/c"), "other.org:443/c");
  EXPECT_EQ(to("http://other.org/c"), "refused");
  EXPECT_EQ(to("file:///c"), "refused");
  EXPECT_EQ(to("/c\r\nX: y"), "refused");
}

}  // namespace
}  // namespace di::codec
