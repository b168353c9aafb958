// Tests what the answer of a forecast says of its own sources and of what it leaves out.
#include <gmock/gmock.h>

#include <fstream>

#include "fixtures.h"
#include "forecast/report.h"

namespace fsccl::forecast {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Result<std::string> answered(const Json& changes, const char* machine = kGpus) {
  Json given = {{"model", Json::parse(kSmall)}, {"machine", Json::parse(machine)}, {"ranks", 64}};
  given.merge_patch(changes);
  return forecast_json(given.dump());
}
Json answer_of(const Json& changes, const char* machine = kGpus) {
  const Result<std::string> text = answered(changes, machine);
  EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.status().text());
  return text.ok() ? Json::parse(text.value()) : Json::object();
}
std::string texts_of(const Json& list) {
  std::string all;
  for (const Json& one : list) all += one.get<std::string>() + "\n";
  return all;
}

TEST(Answer, EachNumberOfRanksIsForecastOrLeftOutWithTheReason) {
  const Json answer = answer_of({{"ranks", 64}, {"shard_over", 64}, {"scaling", true}});
  for (const Json& row : answer["scaling"])
    EXPECT_EQ(row["shard_over"], std::min(row["ranks"].get<int>(), 64)) << row;
  EXPECT_EQ(answer["scaling"].back()["ranks"], 65536);
  EXPECT_THAT(texts_of(answer["left_out"]),
              HasSubstr("scaling to 100000 ranks: shards over 64 of 100000 ranks"));
  EXPECT_FALSE(answer_of({{"scaling", true}}).contains("left_out"));
}

TEST(Answer, TwiceTheRanksAreForecastOrLeftOutWithTheReason) {
  const Json answer = answer_of({{"ranks", 6}, {"what_if", true}});
  EXPECT_EQ(answer["what_if"].size(), 1u);
  EXPECT_THAT(texts_of(answer["left_out"]),
              HasSubstr("what if network half as fast: all ranks are on one host"));
  EXPECT_THAT(texts_of(answer["left_out"]),
              HasSubstr("what if twice the ranks: 12 ranks on hosts of 8"));
  EXPECT_EQ(answer_of({{"what_if", true}})["what_if"].size(), 5u);
}

TEST(Answer, BothCalibrationsAreNamed) {
  const Json answer = answer_of({{"measured_communication_s", 0.5},
                                 {"calibration", {{"step_s", 0.6}, {"source", "a test"}}}});
  EXPECT_EQ(answer["interval"]["from"],
            "calibrated by one measured step: a test; communication of a step measured");
  EXPECT_DOUBLE_EQ(answer["interval"]["communication"].get<double>(), 0.1);
}

// Writes a topology of `hosts` hosts of one GPU and one card with a rate, or without one.
std::string topology_of(int hosts, double gb_per_s) {
  Json card = {{"kind", "nic"}, {"name", "card"}};
  if (gb_per_s > 0) card["gb_per_s"] = gb_per_s;
  Json list = Json::array(), links = Json::array();
  for (int host = 0; host < hosts; host++)
    list.push_back({{"name", "h" + std::to_string(host)},
                    {"children", {{{"kind", "gpu"}, {"name", "gpu0"}}, card}}});
  if (hosts > 1) links.push_back({{"a", "h0/card"}, {"b", "h1/card"}, {"gb_per_s", 50}});
  const std::string path = ::testing::TempDir() + "forecast_answer_topology.json";
  std::ofstream(path) << Json{{"fsccl_topology", 1}, {"hosts", list}, {"links", links}};
  return path;
}

// Switches that are slower than the cards of hosts decide what passes between these. Where the rate
// of a link is not given, the cards decide.
TEST(Answer, SlowSwitchesAreSlowerThanCards) {
  const auto between = [](double gb_per_s) {
    const std::string path = topology_of(2, 50);
    Json topology = Json::parse(std::ifstream(path));
    Json trunk = {{"a", "s0"}, {"b", "s1"}};
    if (gb_per_s > 0) trunk["gb_per_s"] = gb_per_s;
    topology["switches"] = {"s0", "s1"};
    topology["links"] = {{{"a", "h0/card"}, {"b", "s0"}, {"gb_per_s", 50}},
                         {{"a", "h1/card"}, {"b", "s1"}, {"gb_per_s", 50}},
                         trunk};
    std::ofstream(path) << topology;
    const Json from = {{"ranks_per_host", nullptr}, {"between", nullptr}, {"topology", path}};
    return answer_of({{"machine", from}, {"ranks", 2}})["machine"]["between_gb_per_s"];
  };
  EXPECT_EQ(between(200), 50);
  EXPECT_EQ(between(5), 5);
  EXPECT_EQ(between(0), 50);
}

TEST(Answer, ATopologyOfOneHostSaysNothingOfANetwork) {
  Json machine = Json::parse(kGpus);
  for (const char* key : {"ranks_per_host", "within", "between"}) machine.erase(key);
  machine["topology"] = topology_of(1, 0);
  const std::string without = machine.dump();
  const auto said = [&](const Json& changes) {
    const Result<std::string> text = answered(changes, without.c_str());
    return text.ok() ? texts_of(Json::parse(text.value())["not_known"]) : text.status().text();
  };
  EXPECT_THAT(said({{"ranks", 2}}), HasSubstr("give a topology of two or more hosts"));
  EXPECT_THAT(said({{"ranks", 1}}), ::testing::Not(HasSubstr("network")));
  EXPECT_THAT(said({{"ranks", 1}, {"scaling", true}, {"what_if", true}}),
              ::testing::Not(HasSubstr("the network between hosts")));
  const auto with_between = [&](const Json& between) {
    return said({{"ranks", 2}, {"machine", {{"between", between}}}});
  };
  EXPECT_THAT(with_between(Json::object()), HasSubstr("give a topology of two or more hosts"));
  EXPECT_THAT(with_between({{"gb_per_s", 50}}), HasSubstr("assumed are a typical latency"));
  EXPECT_THAT(with_between({{"gb_per_s", 50}, {"ns", 5000}}),
              ::testing::Not(HasSubstr("the network between hosts")));
  topology_of(2, 50);
  EXPECT_THAT(said({{"ranks", 4}}), HasSubstr("assumed are a typical latency"));
  topology_of(1, 50);
  EXPECT_THAT(said({{"ranks", 2}}), HasSubstr("50 GB/s a host, as the cards of the one host of"));
}

// A topology says how many GPUs a host has, and how fast the links within each host are.
TEST(Answer, ATopologyThatContradictsItselfOrTheMachineIsRefused) {
  const std::string path = ::testing::TempDir() + "forecast_within_topology.json";
  const auto said = [&](const Json& rates, const Json& change) {
    const Json children = {{{"kind", "gpu"}, {"name", "gpu0"}},
                           {{"kind", "gpu"}, {"name", "gpu1"}},
                           {{"kind", "nic"}, {"name", "card"}, {"gb_per_s", 50}}};
    Json hosts = Json::array(), links = {{{"a", "h0/card"}, {"b", "h1/card"}, {"gb_per_s", 50}}};
    for (size_t host = 0; host < rates.size(); host++) {
      const std::string name = "h" + std::to_string(host);
      hosts.push_back({{"name", name}, {"children", children}});
      links.push_back({{"a", name + "/gpu0"}, {"b", name + "/gpu1"}, {"gb_per_s", rates[host]}});
    }
    std::ofstream(path) << Json{{"fsccl_topology", 1}, {"hosts", hosts}, {"links", links}};
    Json machine = {{"topology", path}, {"ranks_per_host", nullptr}, {"within", nullptr}};
    machine.merge_patch(change);
    Json given = Json::parse(kGpus);
    given.merge_patch(machine);
    const Result<std::string> text = answered({{"ranks", 4}}, given.dump().c_str());
    return text.ok() ? Json::parse(text.value())["machine"].dump() : text.status().text();
  };
  EXPECT_THAT(said({450, 450}, Json::object()), HasSubstr("\"within_gb_per_s\":450"));
  EXPECT_THAT(said({450, 10}, Json::object()), HasSubstr("h0 has 450 GB/s by nvlink"));
  EXPECT_THAT(said({450, 10}, Json::object()), HasSubstr("h1 has 24 GB/s by pcie"));
  EXPECT_THAT(said({450, 450}, {{"ranks_per_host", 64}}), HasSubstr("give 2 or less"));
  EXPECT_THAT(said({450, 450}, {{"ranks_per_host", 1}}), HasSubstr("\"hosts\":4"));
}

TEST(Answer, AnAssumedLinkWithinAHostIsNamed) {
  const auto said = [](const Json& within, int ranks) {
    return texts_of(answer_of({{"machine", {{"within", within}}}, {"ranks", ranks}})["not_known"]);
  };
  EXPECT_THAT(said(nullptr, 8), HasSubstr("assumed is a typical 150 GB/s by nvlink"));
  EXPECT_THAT(said({{"link", "pcie"}, {"gb_per_s", nullptr}}, 8), HasSubstr("by pcie"));
  EXPECT_THAT(said(nullptr, 1), ::testing::Not(HasSubstr("links within")));
  EXPECT_THAT(said({{"gb_per_s", 450}}, 8), ::testing::Not(HasSubstr("links within")));
}

TEST(Answer, AnAssumedNetworkIsNamedWhereverItIsUsed) {
  const Json alone = {{"machine", {{"between", nullptr}}}, {"ranks", 8}};
  const auto said = [&](const char* part) {
    Json changes = alone;
    changes[part] = true;
    return texts_of(answer_of(changes)["not_known"]);
  };
  EXPECT_THAT(said("search"), ::testing::Not(HasSubstr("the network between hosts")));
  EXPECT_THAT(said("scaling"), HasSubstr("assumed are a typical 1.25 GB/s a host, and a typical"));
  EXPECT_THAT(said("what_if"), HasSubstr("assumed are a typical 1.25 GB/s a host, and a typical"));
}

TEST(Answer, AMeasuredMachineIsCalledSo) {
  const Json measured = {
      {"exchange_ns", 300}, {"slots_ns", {60, 250, 11000}}, {"copy_ns_per_kib", 100}};
  const auto from = [](const Json& answer) {
    return answer["interval"]["from"].get<std::string>();
  };
  const Json plain = answer_of(Json::object(), kHosts);
  EXPECT_THAT(from(plain), HasSubstr("not calibrated"));
  EXPECT_FALSE(plain["machine"]["measured"].get<bool>());
  const Json here = answer_of({{"machine", {{"measured", measured}, {"efficiency", 1}}}}, kHosts);
  EXPECT_THAT(from(here), HasSubstr("computation and communication within a host as measured"));
  EXPECT_TRUE(here["machine"]["measured"].get<bool>());
  EXPECT_THAT(from(answer_of({{"machine", {{"measured", measured}}}}, kHosts)),
              HasSubstr("computation at a share of the peak"));
}

}  // namespace
}  // namespace fsccl::forecast
