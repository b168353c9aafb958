// Tests how values are written as JSON and as a pickle. tests/tools/trace_test.py also loads both
// with Python.
#include "base/value_writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json_writer.h"
#include "base/pickle_writer.h"

namespace fsccl {
namespace {

template <class Writer, class Fill>
std::string written(Fill fill) {
  std::string text;
  Writer out([&text](std::string_view piece) { text += piece; });
  fill(out);
  out.finish();
  return text;
}

void some_values(ValueWriter& out) {
  out.begin_map();
  out.entry("text", "a \"b\"\n\xC3\xBC");
  out.key("list");
  out.begin_list();
  out.number(0);
  out.begin_map();
  out.end_map();
  out.begin_list();
  out.end_list();
  out.truth(true);
  out.pair(1, 2);
  out.end_list();
  out.entry("large", UINT64_MAX);
  out.end_map();
}

TEST(JsonWriter, WritesWhatAParserReads) {
  const nlohmann::json json = nlohmann::json::parse(written<JsonWriter>(some_values));
  EXPECT_EQ(json["text"], "a \"b\"\n\xC3\xBC");
  EXPECT_EQ(json["list"], nlohmann::json::parse("[0,{},[],true,[1,2]]"));
  EXPECT_EQ(json["large"], UINT64_MAX);
}

TEST(JsonWriter, WritesTextThatIsNotUtf8) {
  EXPECT_EQ(valid_utf8("a\xFF z"), "a\xEF\xBF\xBD z");
  EXPECT_EQ(valid_utf8("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(written<JsonWriter>([](ValueWriter& out) { out.text("\xC0"); }), "\"\xEF\xBF\xBD\"\n");
}

TEST(PickleWriter, WritesTheInstructionsOfProtocol2) {
  const auto one = [](uint64_t value) {
    return written<PickleWriter>([value](ValueWriter& out) { out.number(value); });
  };
  EXPECT_EQ(one(255), "\x80\x02K\xFF.");
  EXPECT_EQ(one(256), std::string("\x80\x02M\x00\x01.", 6));
  EXPECT_EQ(one(65536), std::string("\x80\x02J\x00\x00\x01\x00.", 8));
  EXPECT_EQ(one(0x7fffffff), std::string("\x80\x02J\xFF\xFF\xFF\x7F.", 8));
  // With the opcode J the number would be negative.
  EXPECT_EQ(one(0x80000000), std::string("\x80\x02\x8A\x08\x00\x00\x00\x80\x00\x00\x00\x00.", 13));
  EXPECT_EQ(one(UINT64_MAX),
            std::string("\x80\x02\x8A\x09\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x00.", 14));
  EXPECT_EQ(written<PickleWriter>([](ValueWriter& out) {
              out.begin_map();
              out.entry("a", "a");  // the second text is a reference to the first
              out.end_map();
            }),
            std::string("\x80\x02}(X\x01\x00\x00\x00"
                        "aq\x00h\x00u.",
                        16));
}

// Lists are written in portions of at most 1000 elements, as many as a reader has to hold on its
// stack.
TEST(PickleWriter, FillsLongListsInPortions) {
  for (const size_t count : {999u, 1000u, 1001u, 2000u, 2001u}) {
    const std::string text = written<PickleWriter>([count](ValueWriter& out) {
      out.begin_list();
      for (size_t i = 0; i < count; i++) out.number(1);
      out.end_list();
    });
    EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), 'e')), (count + 999) / 1000)
        << count;
    EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), 'K')), count);
  }
}

TEST(ValueWriter, LetsGoOfWhatItHasWritten) {
  size_t pieces = 0, largest = 0;
  JsonWriter out(
      [&](std::string_view piece) { pieces++, largest = std::max(largest, piece.size()); });
  out.begin_list();
  for (size_t i = 0; i < 500'000; i++) out.number(i);
  out.end_list();
  out.finish();
  EXPECT_GT(pieces, 5u);
  EXPECT_LT(largest, 1u << 20);
}

}  // namespace
}  // namespace fsccl
