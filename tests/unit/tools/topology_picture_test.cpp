// Tests that the picture of a topology has every device, link and rank, and that names of devices
// cannot add markup.
#include "topology_picture.h"

#include <gtest/gtest.h>

#include "fsccl/insight.h"

namespace {

using fsccl::machine_graph::Graph;
using fsccl::machine_graph::read_graph;

Graph sample(const std::string& name) {
  std::string json;
  const auto take = [](void* text, const char* more, size_t bytes) {
    static_cast<std::string*>(text)->assign(more, bytes);
  };
  EXPECT_EQ(fsccl_topology_describe((std::string(TOPOLOGIES) + "/" + name).c_str(),
                                    FSCCL_TOPOLOGY_JSON, take, &json),
            FSCCL_OK);
  return read_graph(json);
}

TEST(TopologyPicture, HasEachDeviceAndTakesNoMarkupFromNames) {
  Graph hosts = sample("mixed_hosts.json");
  hosts.vertices[0].model = "<script>&\"";
  const std::string svg = topology_picture(hosts, 0);
  for (const char* text : {">gpu7<", ">mlx5_0<", ">eth1<", ">rack<", "<line ", "stroke-dasharray"})
    EXPECT_NE(svg.find(text), svg.npos) << text;
  EXPECT_EQ(svg.find("<script"), svg.npos);
  EXPECT_EQ(svg.find("http", svg.find("xmlns") + 40), svg.npos);
  const std::string cluster = topology_picture(sample("rails_two_tiers.json"), 0);
  EXPECT_NE(cluster.find("and 12 more"), cluster.npos);
  EXPECT_NE(cluster.find("width=\"100%\""), cluster.npos);
  EXPECT_NE(cluster.find(">nic to network_switch: 50 GB/s, 128 links<"), cluster.npos) << cluster;
  // Names are drawn after the lines of links, so the lines do not hide them.
  EXPECT_GT(cluster.find(">gpu7<"), cluster.rfind("<line "));
  EXPECT_EQ(cluster.find("rank"), cluster.npos);
}

TEST(TopologyPicture, MarksWhereRanksSit) {
  // There are 16 hosts with 8 GPUs each. Ranks are on the GPUs, first on those of host 0, then on
  // those of host 1, and so on.
  const std::string cluster = topology_picture(sample("rails_two_tiers.json"), 8);
  for (const char* text : {">gpu0 rank 0<", ">gpu7 rank 7<", ">gpu0 rank 8<", ">gpu7 rank 31<"})
    EXPECT_NE(cluster.find(text), cluster.npos) << text << cluster;
  // Without GPUs ranks are on cores, and there are no more ranks than cores.
  const Graph cores = read_graph(
      R"({"hosts": [{"name": "h", "children": [{"kind": "core", "name": "core0"},
                                               {"kind": "core", "name": "core1"}]}],
          "switches": [], "links": []})");
  const std::string host = topology_picture(cores, 3);
  for (const char* text : {">0</text>", ">1</text>", "<title>core1, rank 1</title>"})
    EXPECT_NE(host.find(text), host.npos) << text << host;
  EXPECT_EQ(host.find("rank 2"), host.npos);
}

}  // namespace
