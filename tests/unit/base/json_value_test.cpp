// Tests how JSON values are read and written.
#include "base/json_value.h"

#include <gtest/gtest.h>

#include "base/json_writer.h"

namespace fsccl {
namespace {

JsonValue value_of(const std::string& text) {
  Result<JsonValue> value = parse_json_text(text, "a test");
  EXPECT_TRUE(value.ok()) << text << "\n" << (value.ok() ? "" : value.status().text());
  return value.ok() ? value.take() : JsonValue();
}
std::string problem(const std::string& text) {
  const Result<JsonValue> value = parse_json_text(text, "a test");
  return value.ok() ? "" : value.status().text();
}
std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonValue, HasTheKindThatWasWritten) {
  const JsonValue all = value_of(R"([null, true, -1, 1, 1.5, "a", [], {}])");
  ASSERT_EQ(all.size(), 8u);
  EXPECT_TRUE(all[0].is_null());
  EXPECT_TRUE(all[1].is_boolean() && all[1].get<bool>());
  EXPECT_TRUE(all[2].is_number_integer() && !all[2].is_number_unsigned());
  EXPECT_TRUE(all[3].is_number_integer() && all[3].is_number_unsigned());
  EXPECT_TRUE(all[4].is_number() && !all[4].is_number_integer());
  EXPECT_TRUE(all[5].is_string() && all[5] == "a" && all[5] != "b");
  EXPECT_TRUE(all[6].is_array() && all[6].empty());
  EXPECT_TRUE(all[7].is_object() && all[7].items().empty());
  for (const size_t other : {0, 1, 5, 6, 7}) EXPECT_FALSE(all[other].is_number()) << other;
}

TEST(JsonValue, GivesNumbersOfEveryType) {
  const JsonValue all = value_of("[-2, 3, 2.75, 18446744073709551615]");
  EXPECT_EQ(all[0].get<int>(), -2);
  EXPECT_EQ(all[1].get<double>(), 3);
  EXPECT_EQ(all[2].get<int>(), 2);
  EXPECT_EQ(all[3].get<uint64_t>(), UINT64_MAX);
  EXPECT_TRUE(value_of("1") == 1 && value_of("1.0") == 1 && value_of("-1") != 1);
  EXPECT_FALSE(value_of("\"1\"") == 1);
  EXPECT_TRUE(all[0].is_whole(-2, 3) && all[1].is_whole(-2, 3));
  EXPECT_FALSE(all[2].is_whole(-2, 3) || all[3].is_whole(-2, 3) || value_of("[]").is_whole(0, 9));
}

TEST(JsonValue, FindsMembersInTheOrderOfTheirKeys) {
  const JsonValue json = value_of(R"({"b": [5], "c": 3, "a": 4})");
  EXPECT_EQ(json.dump(), R"({"a":4,"b":[5],"c":3})");
  EXPECT_TRUE(json.contains("a") && json.contains("c"));
  EXPECT_FALSE(json.contains("") || json.contains("d") || json["a"].contains("x"));
  EXPECT_EQ(json["b"][0], 5);
  EXPECT_TRUE(json["d"].is_null() && json["d"]["e"].is_null());
}

TEST(JsonValue, ThrowsForAnotherKind) {
  const JsonValue json = value_of(R"(["a"])");
  EXPECT_THROW(json[0].get<double>(), std::bad_variant_access);
  EXPECT_THROW(json[0].size(), std::bad_variant_access);
  EXPECT_THROW(json.items(), std::bad_variant_access);
  EXPECT_THROW(json[1], std::out_of_range);
}

TEST(JsonValue, IsWrittenAsItWasRead) {
  for (const char* text :
       {R"([null,true,false,-1,0,18446744073709551615,"a\"\n\u0001ü"])",
        "[0.1,1e-07,1e+15,123456.0,-0.0,1.7976931348623157e+308]", R"({"a":{"b":[]},"c":{}})"})
    EXPECT_EQ(value_of(text).dump(), text);
}

TEST(JsonValue, ErrorsNameThePlace) {
  EXPECT_EQ(problem(" \n"), "a test: it is empty");
  EXPECT_EQ(problem("<a>"), "a test: not JSON at line 1, column 1");
  EXPECT_EQ(problem("{\"a\":\n 1,}"), "a test: not JSON at line 2, column 4");
  EXPECT_EQ(problem("[1] 2"), "a test: not JSON at line 1, column 5");
  EXPECT_EQ(problem("[\"\xFF\"]"), "a test: not JSON at line 1, column 3");
  EXPECT_EQ(problem("[1e400]"), "a test: a number in it is too large");
  EXPECT_EQ(problem(R"([{"a": 1}, {"b": {"x": 1, "a": 1, "x": 2}, "a": 1}])"),
            "a test: an object has the key \"x\" more than once: leave all but one out");
}

TEST(JsonValue, IsNotNestedTooDeeply) {
  EXPECT_EQ(problem(nested(JsonValue::kMostDepth)), "");
  const std::string expected = "a test: nested deeper than 128 levels";
  EXPECT_EQ(problem(nested(JsonValue::kMostDepth + 1)), expected);
  EXPECT_EQ(problem(std::string(1'000'000, '[')), expected);
  std::string objects;
  for (int i = 0; i < 1000; i++) objects += "{\"a\":";
  EXPECT_EQ(problem(objects), expected);
}

TEST(JsonWriter, WritesEntriesOfEveryType) {
  const std::string text = write_json([](JsonWriter& out) {
    out.map({{"a", -1}, {"b", 2.0}, {"c", "x"}, {"d", [&] { out.map({}); }}});
  });
  EXPECT_EQ(text, R"({"a":-1,"b":2.0,"c":"x","d":{}})");
}

TEST(JsonWriter, BeginsALineForEachValue) {
  const JsonValue json = value_of(R"({"a": [], "b": {"c": [1, {"d": null}]}, "e": {}})");
  EXPECT_EQ(write_json([&](JsonWriter& out) { json.write(out); }, JsonWriter::Form::lines),
            R"({
 "a": [],
 "b": {
  "c": [
   1,
   {
    "d": null
   }
  ]
 },
 "e": {}
})");
}

}  // namespace
}  // namespace fsccl
