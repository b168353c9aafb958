#include "topo/file.h"

#include <fstream>
#include <random>
#include <sstream>

#include "samples.h"

using namespace fsccl::topo;

namespace {

std::string read(const std::string& name) {
  std::ifstream file(std::string(TOPOLOGIES) + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(File, CopiesAreNumbered) {
  const Topology cluster = sample("rails_two_tiers.json");
  EXPECT_EQ(cluster.all(Kind::host).size(), 16u);
  EXPECT_EQ(cluster.all(Kind::gpu).size(), 128u);
  EXPECT_EQ(cluster.links.size(), 16u * 8 * 2 + 8 * 4);
  EXPECT_EQ(cluster.path(cluster.find("node11/mlx5_4")), "node11/mlx5_4");
  const Topology server = sample("two_packages.json");
  EXPECT_EQ(server.vertices[static_cast<size_t>(server.find("server/core63"))].cpus,
            std::vector<int>{63});
  EXPECT_EQ(server.find("server/numa0"), -1) << "there are two";
}

TEST(File, LinksRepeatWithTheHostsOfEitherEnd) {
  const std::string hosts = R"({"fsccl_topology": 1, "switches": ["s"], "hosts": [
    {"name": "n{}", "repeat": 2, "first": 3, "children": [{"kind": "nic", "name": "e"}]},
    {"name": "n{}", "repeat": 2, "first": 7, "model": "other", "children": [{"kind": "nic",
     "name": "e"}]},
    {"name": "m{}", "repeat": 3, "children": [{"kind": "nic", "name": "e"}]}], "links": [)";
  const auto from_switch = parse_json(hosts + R"({"a": "s", "b": "n{}/e"}]})", "file");
  ASSERT_TRUE(from_switch.ok()) << from_switch.status().text();
  std::vector<std::string> ends;
  for (const Link& link : from_switch.value().links)
    ends.push_back(from_switch.value().path(link.b));
  EXPECT_EQ(ends, (std::vector<std::string>{"n3/e", "n4/e", "n7/e", "n8/e"}));
  EXPECT_NE(parse_json(hosts + R"({"a": "n{}/e", "b": "m{}/e"}]})", "file")
                .status()
                .text()
                .find("repeat differently"),
            std::string::npos);
}

TEST(File, LargeOnesTakeNoLonger) {
  const std::string text =
      R"({"fsccl_topology": 1, "hosts": [{"name": "h{}", "repeat": 500,
      "children": [{"kind": "package",
    "name": "p", "children": [{"kind": "core", "name": "c{}", "repeat": 400}]}]}]})";
  const auto parsed = parse_json(text, "file");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().all(Kind::core).size(), 200'000u);
  EXPECT_GT(to_json(parsed.value()).size(), 200'000u);
  const std::string links =
      R"({"fsccl_topology": 1, "switches": ["s"], "hosts": [{"name": "h{}", "repeat": 100000,
      "children": [
    {"kind": "nic", "name": "e"}]}], "links": [)";
  std::string many = links;
  for (int i = 0; i < 12; i++) many += std::string(i ? "," : "") + R"({"a": "h{}/e", "b": "s"})";
  EXPECT_NE(parse_json(many + "]}", "file").status().text().find("more than 1000000 links"),
            std::string::npos);
}

TEST(File, WhatIsWrittenIsReadAgain) {
  for (const char* name : {"two_packages.json", "dgx_h100.json", "rails_two_tiers.json",
                           "mixed_hosts.json", "virtual_machine.xml", "two_memories.xml"}) {
    const std::string text = to_json(sample(name));
    const auto again = parse_json(text, name);
    ASSERT_TRUE(again.ok()) << again.status().text();
    EXPECT_EQ(to_json(again.value()), text) << name;
  }
}

std::string problem(const std::string& text) {
  const auto parsed = parse_json(text, "file");
  return parsed.ok() ? "none" : parsed.status().text();
}

std::string with_host(const std::string& more) {
  return R"({"fsccl_topology": 1, "hosts": [{"name": "a", )" + more + "}]}";
}

TEST(File, ErrorsNameThePlace) {
  const std::pair<std::string, const char*> kCases[] = {
      {"", "file: it is empty"},
      {"[]", "the document must be an object"},
      {R"({"hosts": []})", "\"fsccl_topology\" must be 1"},
      {R"({"fsccl_topology": 2, "hosts": []})", "must be 1"},
      {R"({"fsccl_topology": 1})", "\"hosts\" must be a list"},
      {R"({"fsccl_topology": 1, "hosts": [{}]})", "hosts[0] has no \"name\""},
      {with_host(R"("colour": 1)"), "hosts[0] has \"colour\"; known are"},
      {with_host(R"("bytes": -1)"), "hosts[0].bytes is -1"},
      {with_host(R"("bytes": "1")"), "hosts[0].bytes must be a number"},
      {with_host(R"("repeat": 2)"), "its name needs {}"},
      {with_host(R"("repeat": 1e9)"), "hosts[0].repeat must be a whole number"},
      {with_host(R"("cpus": [1])"), "only a core has"},
      {with_host(R"("children": [1])"), "hosts[0].children[0] must be an object"},
      {with_host(R"("children": [{"kind": "gup", "name": "g"}])"),
       "hosts[0].children[0].kind \"gup\" is not known"},
      {with_host(R"("children": [{"kind": "host", "name": "g"}])"),
       "a host cannot hang below a host"},
      {with_host(R"("children": [{"kind": "gpu", "name": "g/0"}])"), "has a slash"},
      {with_host(R"("children": [{"kind": "gpu", "name": "g"}, {"kind": "gpu", "name": "g"}])"),
       "there are two \"g\""},
      {with_host(R"("children": [{"kind": "core", "name": "c", "cpus": [-1]}])"),
       "numbers of processors"},
      {R"({"fsccl_topology": 1, "hosts": [{"name": "a"}], "switches": ["a"]})",
       "switches[0]: there are two \"a\""},
      {R"({"fsccl_topology": 1, "hosts": [{"name": "a"}], "links": [{"a": "a/x", "b": "a"}]})",
       "links[0]: there is no \"a/x\""},
      {R"({"fsccl_topology": 1, "hosts": [{"name": "a"}], "switches": ["s"], )"
       R"("links": [{"a": "s", "b": "a"}]})",
       "\"a\" is a host"},
      {R"({"fsccl_topology": 1, "hosts": [{"name": "a"}], "switches": ["s"], )"
       R"("links": [{"a": "s", "b": "s"}]})",
       "with itself"},
      {R"({"fsccl_topology": 1, "hosts": [{"name": "a"}], "links": [{"a": "b{}/x", "b": "a"}]})",
       "no host is named as in \"b{}/x\""},
  };
  for (const auto& [text, expected] : kCases)
    EXPECT_NE(problem(text).find(expected), std::string::npos) << text << "\n" << problem(text);
}

TEST(File, TooManyAndTooDeep) {
  std::string deep = R"("kind": "pci", "name": "p0")", text = deep;
  for (int i = 1; i < 40; i++)
    text =
        R"("kind": "pci", "name": "p)" + std::to_string(i) + R"(", "children": [{)" + text + "}]";
  EXPECT_NE(problem(with_host(R"("children": [{)" + text + "}]")).find("deeper than"),
            std::string::npos);
  const std::string cores =
      R"("children": [{"kind": "cache", "name": "c{}", "repeat": 100000,
      "children": [{"kind": "core", "name": "c{}",
    "repeat": 100}]}])";
  EXPECT_NE(problem(with_host(cores)).find("more than"), std::string::npos);
}

TEST(File, BytesThatAreNotATopology) {
  std::mt19937 random(7);
  const std::string whole = read("mixed_hosts.json");
  for (int i = 0; i < 2000; i++) {
    std::string text = whole;
    for (int k = 0; k < 1 + i % 4; k++)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) text.resize(random() % text.size());
    const auto parsed = parse_json(text, "file");
    EXPECT_TRUE(!parsed.ok() || !to_json(parsed.value()).empty());
  }
}

TEST(File, MissingAndMalformed) {
  EXPECT_NE(load_file(testing::TempDir()).status().text().find("is a folder"), std::string::npos);
  EXPECT_NE(load_file("/nonexistent.json").status().text().find("/nonexistent.json"),
            std::string::npos);
  const std::string path = testing::TempDir() + "malformed.xml";
  std::ofstream(path) << "<topology version=\"2.0\"><object";
  EXPECT_NE(load_file(path).status().text().find("it is not what hwloc writes"), std::string::npos);
}

}  // namespace
