#include "perf/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "perf/page_collectives.h"
#include "perf/page_step.h"

namespace fsccl::perf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(EscapeHtml, LeavesNoMarkupAndNoControlCharacters) {
  EXPECT_EQ(escape_html("a <b> & \"c\" 'd'"), "a &lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  EXPECT_EQ(escape_html(std::string("x\x01\n\x7F", 4)), "x   ");
  EXPECT_EQ(escape_html("Grüße"), "Grüße");
  EXPECT_EQ(escape_html(""), "");
}

TEST(LineChart, DrawsEachLineInsideItsFrame) {
  const LineChart chart{"A & B",
                        "x<",
                        "y>",
                        Axis::kLogBytes,
                        Axis::kLinear,
                        {{"one", {{1024, 1}, {4096, 3}}, 0, false, false, false},
                         {"two", {{2048, 2}}, 1, true, false, false}}};
  const std::string svg = draw(chart);
  EXPECT_THAT(svg, HasSubstr("A &amp; B"));
  EXPECT_THAT(svg, HasSubstr("x&lt;"));
  // The frame is 52..412 x 8..222. The line goes from a third of its height to the upper right
  // corner.
  EXPECT_THAT(svg, HasSubstr("M52.0 150.7L412.0 8.0"));
  EXPECT_THAT(svg, HasSubstr("<circle"));  // a line of a single point is drawn as a circle
  EXPECT_THAT(svg, HasSubstr(">2K<"));
}

TEST(LineChart, HoldsValuesInStairs) {
  const LineChart chart{"t",
                        "",
                        "",
                        Axis::kLinear,
                        Axis::kLinear,
                        {{"one", {{0, 4}, {4, 2}}, 0, false, false, true}}};
  EXPECT_THAT(draw(chart), HasSubstr("M52.0 8.0L412.0 8.0L412.0 115.0"));
}

TEST(LineChart, IsNothingWithoutAPoint) {
  EXPECT_EQ(draw(LineChart{"t", "", "", Axis::kLinear, Axis::kLinear, {}}), "");
  EXPECT_EQ(draw(LineChart{"t",
                           "",
                           "",
                           Axis::kLog,
                           Axis::kLinear,
                           {{"none", {{0, 1}, {-1, 1}}, 0, false, false, false}}}),
            "");
}

TEST(LineChart, TakesAnyValues) {
  for (double high : {1e-12, 0.3, 1.0, 7.0, 1e15})
    for (Axis axis : {Axis::kLinear, Axis::kLog, Axis::kBytes, Axis::kLogBytes}) {
      const std::string svg =
          draw(LineChart{"t",
                         "",
                         "",
                         axis,
                         axis,
                         {{"one", {{high / 2, high}, {high, high / 3}}, 9, false, false, false}}});
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
      EXPECT_LT(svg.size(), 6000u) << "too many labels for " << high;
    }
}

TEST(LineChart, ALogarithmicAxisEndsAtRoundNumbersNextToTheValues) {
  const auto labels = [](double low, double high) {
    const std::string svg =
        draw(LineChart{"t",
                       "",
                       "",
                       Axis::kLinear,
                       Axis::kLog,
                       {{"one", {{7, low}, {9, high}}, 0, false, false, false}}});
    std::vector<std::string> found;
    const std::regex label(R"(text-anchor="end">([^<]+)<)");
    for (auto at = std::sregex_iterator(svg.begin(), svg.end(), label);
         at != std::sregex_iterator(); ++at)
      found.push_back((*at)[1]);
    return found;
  };
  EXPECT_THAT(labels(15, 22), ElementsAre("10", "20", "50"));
  EXPECT_THAT(labels(20, 20), ElementsAre("20", "50"));
  EXPECT_THAT(labels(0.5, 2), ElementsAre("0.5", "1", "2"));
  EXPECT_THAT(labels(3, 4e5), ElementsAre("10", "100", "1k", "10k", "100k"));
}

TEST(BarChart, PutsPartsEndToEnd) {
  const std::string svg =
      draw(BarChart{"phases", "ms", {"a", "b"}, {{"rank 0", {1, 3}}, {"rank 1", {2, 2}}}});
  EXPECT_THAT(svg, HasSubstr("rank 1"));
  EXPECT_THAT(svg, HasSubstr("<title>b: 3</title>"));
  EXPECT_EQ(draw(BarChart{"phases", "ms", {"a"}, {{"rank 0", {0}}}}), "");
}

TEST(Table, PutsColumnsOfFiguresToTheRight) {
  const std::string html = draw(Table{{"name", "value"}, {{"<x>", "1.5 GiB"}, {"3", "-2"}}});
  EXPECT_THAT(html, HasSubstr("<td>&lt;x&gt;</td><td class=\"n\">1.5 GiB</td>"));
  EXPECT_THAT(html, HasSubstr("<td>3</td>"));  // stays left, because its column has words, too
}

TEST(CollectivesPage, EscapesAndShowsEveryRow) {
  CollectiveRow row;
  row.collective = "all_gather";
  row.dtype = "<fp32>";
  row.op = "none";
  row.memory = "pool";
  row.bytes = 4096;
  row.ranks = 2;
  row.p50_us = 2;
  row.algbw = 2.048;
  const std::string page = collectives_page({row}, {{4096, 10, 20}});
  EXPECT_THAT(page, HasSubstr("&lt;fp32&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<fp32>")));
  EXPECT_THAT(page, HasSubstr("limit of this machine"));
  EXPECT_THAT(page, HasSubstr("not checked"));
  EXPECT_THAT(collectives_page({}, {}), HasSubstr("</html>"));
}

TEST(StepPage, EscapesTheModelsNames) {
  StepReport report;
  report.model = "<model>";
  report.unit_list.push_back({"<unit>", 1, 64, 64, 1, 1, 1});
  report.rank_phases_us = {{{"reduce", 5.0}}};
  report.memory = {{0, 0, 0}, {1, 64, 64}};
  const std::string page = step_page(report, {});
  EXPECT_THAT(page, HasSubstr("&lt;model&gt;"));
  EXPECT_THAT(page, HasSubstr("&lt;unit&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<unit>")));
  EXPECT_THAT(page, HasSubstr("live bound"));
}

}  // namespace
}  // namespace fsccl::perf
