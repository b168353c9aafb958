// Tests what tuning files may say, and that errors in them are named.
#include "select/tuning_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace fsccl::testing {
namespace {

const std::string kMeasured =
    R"({"exchange_ns": 110, "sizes": [256, 2048, 131072], "slots_ns": [60, 250, 11000],
    "slots_past_caches_ns": [400, 700, 18000],
        "side_by_side": "from_slots", "read_ns": [1200, 1400, 15000], "copy_ns_per_kib": 40.96})";
const std::string kWhole =
    R"({"fsccl_tuning": 1, "costs": [{"machine": "m", "transport": "shm", "link": "cache", )"
    R"("measured": )" +
    kMeasured + R"(}], "rules": ["all_gather@1x2:64K-1M=slots/32K", "all_reduce=by_hosts"]})";

TEST(TuningFile, WhatItSays) {
  const auto tuning = parse_tuning(kWhole, "file");
  ASSERT_TRUE(tuning.ok()) << tuning.status().text();
  ASSERT_EQ(tuning.value().rules.size(), 2u);
  EXPECT_EQ(tuning.value().rules[1].origin, "rule 1 of FSCCL_TUNING_FILE");
  const Costs* costs = tuning.value().find("m", "shm", topo::LinkClass::cache);
  ASSERT_NE(costs, nullptr);
  EXPECT_EQ(costs->exchange, 110);
  EXPECT_EQ(costs->slot_streaming.ns[2], 18000);
  EXPECT_DOUBLE_EQ(costs->copy_per_byte, 0.04);
  EXPECT_EQ(costs->side_by_side, SideBySide::from_slots);
  EXPECT_TRUE(costs->can_read && costs->origin == CostsOrigin::tuning_file);
  EXPECT_EQ(tuning.value().find("", "shm", topo::LinkClass::cache), costs) << "of any machine";
  EXPECT_EQ(tuning.value().find("n", "shm", topo::LinkClass::cache), nullptr);
  EXPECT_EQ(tuning.value().find("m", "ucx", topo::LinkClass::cache), nullptr);
  EXPECT_EQ(tuning.value().find("m", "shm", topo::LinkClass::host), nullptr);
  EXPECT_NE(tuning.value().hash, parse_tuning(kWhole + " ", "file").value().hash);
}

std::string native(const std::string& way, const std::string& sizes, const std::string& ns) {
  return R"({"fsccl_tuning": 1, "native": [{"operation": "all_gather", "hosts": 2,)"
         R"( "ranks_per_host": 4, "algorithm": ")" +
         way + R"(", "sizes": )" + sizes + R"(, "ns": )" + ns + "}]}";
}

// In the report of the costs, times of bytes are rounded to whole nanoseconds, and others are not
// rounded.
TEST(TuningFile, CostsAreToldAsTheFileHasThem) {
  Costs costs;
  EXPECT_EQ(costs_json(costs),
            R"({"exchange_ns":300,"message_ns":0,"sizes":[256,2048,131072],)"
            R"("slots_ns":[60,250,11000],"slots_past_caches_ns":[400,700,18000],)"
            R"("side_by_side":"none","read_ns":null,"read_to_slots":0.0,"read_written":1.0,)"
            R"("copy_ns_per_kib":41.0})");
  costs.exchange = 110.25;
  costs.slot_cached.ns = {60.5, 250.51, 1e9};
  costs.read.ns = {0.4, 1399.7, 15000};
  costs.copy_per_byte = 0.05;
  costs.side_by_side = SideBySide::both;
  costs.can_read = true;
  costs.read_to_slots = 0.75;
  costs.read_written = 1.75;
  EXPECT_EQ(costs_json(costs),
            R"({"exchange_ns":110.25,"message_ns":0,"sizes":[256,2048,131072],)"
            R"("slots_ns":[60,251,1000000000],"slots_past_caches_ns":[400,700,18000],)"
            R"("side_by_side":"both","read_ns":[0,1400,15000],"read_to_slots":0.75,)"
            R"("read_written":1.75,"copy_ns_per_kib":51.2})");
}

TEST(TuningFile, TimesOfWaysOnGpus) {
  const Tuning tuning = parse_tuning(native("nccl", "[4096, 8192]", "[10, 30.5]"), "file").take();
  ASSERT_EQ(tuning.native.size(), 1u);
  const NativePrice& price = tuning.native[0];
  EXPECT_EQ(price.op, OpCode::all_gather);
  EXPECT_EQ(price.algorithm, Algorithm::nccl);
  EXPECT_EQ(price.hosts, 2);
  EXPECT_EQ(price.per_host, 4);
  EXPECT_DOUBLE_EQ(price.at(8192), 30.5);
}

TEST(TuningFile, ErrorsNameThePlace) {
  const auto with = [](const std::string& more) { return R"({"fsccl_tuning": 1, )" + more + "}"; };
  const auto entry = [&](const std::string& link, const std::string& measured) {
    return with(R"("costs": [{"machine": "m", "transport": "shm", "link": ")" + link +
                R"(", "measured": )" + measured + "}]");
  };
  const auto changed = [](std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, const char*> kCases[] = {
      {"", "file: it is empty"},
      {"{\n \"costs\": [,]}", "file: not JSON at line 2, column 12"},
      {"{\"costs\": [1e999]}", "file: a number in it is too large"},
      {"[]", "the document must be an object"},
      {"{}", "\"fsccl_tuning\" must be 1"},
      {R"({"fsccl_tuning": 2})", "write the file anew"},
      {with(R"("rule": [])"), "has \"rule\"; known are fsccl_tuning, costs, rules"},
      {with(R"("rules": "x")"), "\"rules\" must be a list"},
      {with(R"("rules": [1])"), "rules[0] must be a text"},
      {with(R"("rules": ["all_gather=slots", "all_gather=ring"])"),
       "rules[1]: rule \"all_gather=ring\": plan \"ring\" is not one of"},
      {with(R"("native": [1])"), "native[0] must be an object"},
      {native("slots", "[1, 2]", "[1, 2]"),
       "native[0]: operation \"all_gather\" has no algorithm \"slots\""},
      {native("summed", "[1, 2]", "[1, 2]"),
       "native[0]: operation \"all_gather\" has no algorithm \"summed\""},
      {native("nccl", "[1, 2]", "[1]"), "native[0]: sizes and ns must be lists of as many"},
      {native("nccl", "[1, 2]", "[1, -2]"), "native[0]: sizes and ns must be lists of as many"},
      {native("nccl", "[]", "[]"), "native[0]: sizes and ns must be lists of as many"},
      {native("nccl", "[2, 2]", "[1, 2]"), "native[0].sizes must grow"},
      {with(R"("costs": [1])"), "costs[0] must be an object"},
      {with(R"("costs": [{"machine": "m", "transport": "shm"}])"), "costs[0] has no \"link\""},
      {entry("cable", kMeasured), "costs[0].link \"cable\" is not a class of link"},
      {entry("cache", "{}"), "costs[0].measured.sizes must be [256,2048,131072]"},
      {entry("cache", changed(kMeasured, "[60, 250, 11000]", "[60, 250]")),
       "costs[0].measured.slots_ns must be 3 numbers"},
      {entry("cache", changed(kMeasured, "from_slots", "some")),
       "costs[0].measured.side_by_side must be one of none, from_slots, both"},
      {entry("cache", changed(kMeasured, "1400", "-1")),
       "costs[0].measured.read_ns must be 3 numbers"},
      {entry("cache", changed(kMeasured, "110", "1e99")),
       "costs[0].measured.exchange_ns is 1e+99: it must be from 0"},
  };
  for (const auto& [text, expected] : kCases) {
    const auto parsed = parse_tuning(text, "file");
    const std::string problem = parsed.ok() ? "none" : parsed.status().text();
    EXPECT_NE(problem.find(expected), std::string::npos) << text << "\n" << problem;
  }
}

TEST(TuningFile, BytesThatAreNone) {
  std::mt19937 random(13);
  for (int i = 0; i < 5000; i++) {
    std::string text = kWhole;
    for (int k = 0; k < 1 + i % 4; k++)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) text.resize(random() % text.size());
    const auto parsed = parse_tuning(text, "file");
    EXPECT_TRUE(parsed.ok() || parsed.status().text().starts_with("file: ")) << text;
  }
}

TEST(TuningFile, MissingAndTooLarge) {
  EXPECT_NE(load_tuning("/nonexistent.json").status().text().find("/nonexistent.json"),
            std::string::npos);
  const std::string path = ::testing::TempDir() + "large_tuning.json";
  std::ofstream(path) << kWhole << std::string(1 << 20, ' ');
  EXPECT_NE(load_tuning(path).status().text().find("more than 1048576 bytes"), std::string::npos);
}

TEST(TuningFile, SettingsInForceGoFirst) {
  Config settings;
  settings.plan = "all_reduce=slots";
  settings.eager_bytes = kConfigAuto;
  const Tuning tuning = parse_tuning(kWhole, "file").take();
  const auto origins = [&] {
    std::string text;
    const auto rules = rules_in_force(settings, tuning).take();
    for (const Rule& rule : *rules) text += rule.origin.substr(0, 10) + ";";
    return text;
  };
  EXPECT_EQ(origins(), "FSCCL_PLAN;rule 0 of ;rule 1 of ;");
  settings.hierarchy = HierarchyMode::kOff;
  EXPECT_EQ(origins(), "FSCCL_PLAN;rule 0 of ;");
  settings.eager_bytes = 0;
  EXPECT_EQ(origins(), "FSCCL_PLAN;");
}

}  // namespace
}  // namespace fsccl::testing
