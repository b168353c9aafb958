// Tests for every type of variable what it accepts and what it refuses, and that a refusal names
// the variable, the value and the values that are accepted.
#include "base/config_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <clocale>

#include "base/config_store.h"

namespace fsccl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ConfigSpec kInteger{"FSCCL_COUNT", ConfigType::kInteger, "7", 1, 100, "", ""};
const ConfigSpec kIntegerAuto{"FSCCL_AUTO", ConfigType::kInteger, "auto", 0, 100, "", ""};
const ConfigSpec kBytes{"FSCCL_SIZE", ConfigType::kBytes, "1M", 4096, int64_t{1} << 40, "", ""};
const ConfigSpec kHuge{"FSCCL_HUGE", ConfigType::kBytes, "1M", 0, INT64_MAX, "", ""};
const ConfigSpec kBool{"FSCCL_FLAG", ConfigType::kBool, "0", 0, 0, "", ""};
const ConfigSpec kString{"FSCCL_TEXT", ConfigType::kString, "", 0, 8, "", ""};
const ConfigSpec kPath{"FSCCL_PATH", ConfigType::kPath, "", 0, 0, "", ""};
const ConfigSpec kEnum{"FSCCL_MODE", ConfigType::kEnum, "never-ask", 0, 0, "kNeverAsk, kOff", ""};
const ConfigSpec kList{"FSCCL_LIST", ConfigType::kList, "", 0, 0, "kShm, kUcx, kKeep", ""};
const ConfigSpec kInfo{"FSCCL_LEVEL", ConfigType::kEnum, "info", 0, 0, "kInfo, kWarn", ""};

int64_t number(const ConfigSpec& spec, const char* text) {
  auto value = parse_config_value(spec, text);
  EXPECT_TRUE(value.ok()) << (value.ok() ? "" : value.status().text());
  return value.ok() ? value.value().number : -999;
}

void expect_refused(const ConfigSpec& spec, const std::string& text) {
  const auto value = parse_config_value(spec, text);
  ASSERT_FALSE(value.ok()) << spec.name << " accepts " << text;
  EXPECT_EQ(value.status().code(), FSCCL_ERR_CONFIG);
  EXPECT_THAT(value.status().text(), HasSubstr(spec.name));
  EXPECT_THAT(value.status().text(), HasSubstr(quote(text)));
  EXPECT_THAT(value.status().text(), HasSubstr(config_accepted(spec)));
}

TEST(ConfigValue, Integer) {
  EXPECT_EQ(number(kInteger, "1"), 1);
  EXPECT_EQ(number(kInteger, "100"), 100);
  EXPECT_EQ(number(kIntegerAuto, "auto"), -1);
  EXPECT_EQ(number(kIntegerAuto, "0"), 0);
  for (const char* bad : {"", "0", "101", "-1", "+5", " 5", "5 ", "5x", "1K", "0x10", "1.5", "auto",
                          "99999999999999999999"}) {
    expect_refused(kInteger, bad);
  }
  expect_refused(kIntegerAuto, "-1");
  EXPECT_EQ(config_accepted(kInteger), "integer, 1 to 100");
  EXPECT_EQ(config_accepted(kIntegerAuto), "integer, 0 to 100, or auto");
}

TEST(ConfigValue, Bytes) {
  EXPECT_EQ(number(kBytes, "4096"), 4096);
  EXPECT_EQ(number(kBytes, "64K"), 64 << 10);
  EXPECT_EQ(number(kBytes, "1m"), 1 << 20);
  EXPECT_EQ(number(kBytes, "2G"), int64_t{2} << 30);
  EXPECT_EQ(number(kBytes, "1T"), int64_t{1} << 40);
  EXPECT_EQ(number(kHuge, "8388607T"), int64_t{8388607} << 40);
  EXPECT_EQ(number(kBytes, "4GB"), int64_t{4} << 30);
  EXPECT_EQ(number(kBytes, "4gib"), int64_t{4} << 30);
  EXPECT_EQ(number(kBytes, "1.5M"), 3 << 19);
  EXPECT_EQ(number(kBytes, "8192B"), 8192);
  for (const char* bad : {"", "K", "4095", "2T", "64 K", "64P", "-64K", "+64K", "K64", "64KK",
                          "64iB", "6400.5", "1e6", "0x10000", "1.0000001K"})
    expect_refused(kBytes, bad);
  expect_refused(kHuge, "8388608T");  // 2^63
  EXPECT_EQ(config_accepted(kBytes), "bytes, 4K to 1T, with K, M, G or T");
}

// Programs set the locale of their user. In a Turkish one the upper case of "i" is not "I", and a
// comma stands in a number for the point.
TEST(ConfigValue, DoesNotDependOnTheLocale) {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  if (!std::setlocale(LC_ALL, "tr_TR.UTF-8") && !std::setlocale(LC_ALL, "tr_TR"))
    GTEST_SKIP() << "this system has no Turkish locale";
  EXPECT_EQ(number(kBytes, "4gib"), int64_t{4} << 30);
  EXPECT_EQ(number(kBytes, "1.5MIB"), 3 << 19);
  EXPECT_EQ(number(kInfo, "INFO"), 0);
  EXPECT_EQ(number(kInfo, "info"), 0);
  EXPECT_EQ(quote("\xc3\x9f \x90"), "\"\xc3\x9f \x90\"");
  std::setlocale(LC_ALL, before.c_str());
}

TEST(ConfigValue, Bool) {
  for (const char* yes : {"1", "true", "Yes", "ON"}) EXPECT_EQ(number(kBool, yes), 1);
  for (const char* no : {"0", "false", "No", "OFF"}) EXPECT_EQ(number(kBool, no), 0);
  for (const char* bad : {"", "2", "y", "enabled", "01"}) expect_refused(kBool, bad);
}

TEST(ConfigValue, StringAndPath) {
  EXPECT_EQ(parse_config_value(kString, "12345678").value().text, "12345678");
  EXPECT_EQ(parse_config_value(kString, "").value().text, "");
  EXPECT_EQ(parse_config_value(kPath, "/a b/c").value().text, "/a b/c");
  expect_refused(kString, "123456789");
  expect_refused(kString, "a\nb");
  expect_refused(kPath, std::string("a\0b", 3));
  expect_refused(kPath, std::string(5000, 'x'));
}

TEST(ConfigValue, Enum) {
  EXPECT_THAT(config_words(kEnum), ElementsAre("never-ask", "off"));
  EXPECT_EQ(number(kEnum, "never-ask"), 0);
  EXPECT_EQ(number(kEnum, "OFF"), 1);
  for (const char* bad : {"", "of", "offf", "kOff", "0", "off,never-ask"})
    expect_refused(kEnum, bad);
  EXPECT_EQ(config_accepted(kEnum), "one of never-ask, off");
}

TEST(ConfigValue, List) {
  EXPECT_THAT(config_words(kList), ElementsAre("shm", "ucx", "keep"));
  EXPECT_THAT(parse_config_value(kList, "ucx,shm").value().list, ElementsAre(1, 0));
  EXPECT_THAT(parse_config_value(kList, "keep").value().list, ElementsAre(2));
  EXPECT_TRUE(parse_config_value(kList, "").value().list.empty());
  for (const char* bad : {",", "shm,", ",shm", "shm,,ucx", "shm,tcp", "shm,shm", "shm ucx"})
    expect_refused(kList, bad);
}

TEST(ConfigValue, HostileTextIsMadeSafe) {
  EXPECT_EQ(quote("a\nb\x1b[2J"), "\"a?b?[2J\"");
  EXPECT_LT(quote(std::string(1000, 'x')).size(), 100u);
}

TEST(ConfigValue, NearestName) {
  const std::vector<std::string_view> names = {"FSCCL_TIMEOUT_MS", "FSCCL_LOG_LEVEL",
                                               "FSCCL_LOG_FILE"};
  EXPECT_EQ(nearest_name("FSCCL_TIMEOUT", names), "FSCCL_TIMEOUT_MS");
  EXPECT_EQ(nearest_name("FSCCL_TIMEUOT_MS", names), "FSCCL_TIMEOUT_MS");
  EXPECT_EQ(nearest_name("FSCCL_LOGFILE", names), "FSCCL_LOG_FILE");
  EXPECT_EQ(nearest_name("FSCCL_LOG_LEVL", names), "FSCCL_LOG_LEVEL");
  EXPECT_EQ(nearest_name("FSCCL_ZZZZZZZZZZ", names), "");
  EXPECT_EQ(nearest_name("FSCCL_", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), names), "");
}

TEST(ConfigTable, DefaultsAreAcceptedAndEverythingIsDocumented) {
  std::vector<std::string_view> seen;
  for (const ConfigSpec& spec : config_specs()) {
    EXPECT_TRUE(parse_config_value(spec, spec.default_text).ok()) << spec.name;
    EXPECT_FALSE(config_accepted(spec).empty()) << spec.name;
    EXPECT_GT(std::string_view(spec.doc).size(), 10u) << spec.name;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), spec.name), 0) << spec.name;
    seen.push_back(spec.name);
  }
}

}  // namespace
}  // namespace fsccl
