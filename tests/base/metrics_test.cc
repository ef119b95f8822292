#include "base/metrics.h"

#include <gtest/gtest.h>

namespace di {
namespace {

TEST(MetricRegistry, WritesThePrometheusTextFormat) {
  MetricRegistry registry;
  Counter& a = registry.counter("x_total", "Things.", {{"kind", "a"}});
  registry.counter("x_total", "", {{"kind", "b\"\\\n"}}).add(7);
  a.add();
  a.add(2);
  EXPECT_EQ(&registry.counter("x_total", "", {{"kind", "a"}}), &a) << "the same labels are the same series";
  registry.gauge("level", "Level.").set(0.5);
  registry.gauge_from("read", "Read at the scrape.", {}, [] { return 42.0; });
  Histogram& h = registry.histogram("seconds", "Time.", {0.1, 1.0});
  for (const double v : {0.05, 0.1, 0.5, 1.0, 2.0}) h.observe(v);
  EXPECT_EQ(registry.text(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{kind=\"a\"} 3\nx_total{kind=\"b\\\"\\\\\\n\"} 7\n"
            "# HELP level Level.\n# TYPE level gauge\nlevel 0.5\n"
            "# HELP read Read at the scrape.\n# TYPE read gauge\nread 42\n"
            "# HELP seconds Time.\n# TYPE seconds histogram\nseconds_count 5\nseconds_sum 3.65\n"
            "seconds_bucket{le=\"0.1\"} 2\nseconds_bucket{le=\"1\"} 4\nseconds_bucket{le=\"+Inf\"} 5\n");
}

// As when a reader waits for a lock whose holder asks for a series.
TEST(MetricRegistry, ReadersMayUseTheRegistry) {
  MetricRegistry registry;
  registry.counter_from("reads_total", "", {{"kind", "a"}}, [&registry] {
    registry.counter("made_total", "").add();
    return static_cast<double>(registry.counter("made_total", "").value());
  });
  EXPECT_EQ(registry.text(), "# TYPE reads_total counter\nreads_total{kind=\"a\"} 1\n");
}

TEST(MetricRegistryDeathTest, OneNameHasOneType) {
  MetricRegistry registry;
  registry.counter("x", "");
  EXPECT_DEATH(registry.gauge("x", ""), "another type");
}

}  // namespace
}  // namespace di
