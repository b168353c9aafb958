#include "topo/connection.h"

#include "samples.h"

using namespace fsccl::topo;

namespace {

Connection link_between(const Topology& topology, const char* from, const char* to) {
  const int a = topology.find(from), b = topology.find(to);
  EXPECT_TRUE(a >= 0 && b >= 0) << from << " " << to;
  const Graph graph(topology);
  const Connection there = graph.between(a, b), back = graph.between(b, a);
  EXPECT_EQ(there.link, back.link) << from << " " << to;
  EXPECT_EQ(there.gb_per_s, back.gb_per_s) << from << " " << to;
  EXPECT_EQ(graph.from(a)[static_cast<size_t>(b)].ns, there.ns);
  return there;
}

TEST(Connection, CoresByWhatTheyShare) {
  const Topology server = sample("two_packages.json");
  EXPECT_EQ(link_between(server, "server/core0", "server/core0").link, LinkClass::core);
  EXPECT_EQ(link_between(server, "server/core0", "server/core7").link, LinkClass::cache);
  EXPECT_EQ(link_between(server, "server/core0", "server/core8").link, LinkClass::numa);
  const Connection far = link_between(server, "server/core0", "server/core32");
  EXPECT_EQ(far.link, LinkClass::host);
  EXPECT_GT(far.ns, link_between(server, "server/core0", "server/core8").ns);
  EXPECT_EQ(link_between(server, "server/core0", "server/eth0").gb_per_s, 3.125);
}

TEST(Connection, GpusByNvlinkAndTheirCardsByPci) {
  const Topology dgx = sample("dgx_h100.json");
  const Connection gpus = link_between(dgx, "dgx/gpu0", "dgx/gpu7");
  EXPECT_EQ(gpus.link, LinkClass::nvlink);
  EXPECT_EQ(gpus.gb_per_s, 450);
  EXPECT_EQ(gpus.vertices.size(), 3u);
  EXPECT_EQ(link_between(dgx, "dgx/gpu0", "dgx/mlx5_0").link, LinkClass::pcie);
  EXPECT_EQ(link_between(dgx, "dgx/gpu0", "dgx/mlx5_0").gb_per_s, 50);
  // Cores that are far apart are not near each other through GPUs.
  EXPECT_EQ(link_between(dgx, "dgx/core0", "dgx/core111").link, LinkClass::host);
  EXPECT_EQ(link_between(dgx, "dgx/mlx5_0", "dgx/mlx5_7").link, LinkClass::host);
  // A device of the other package is not nearer than one of the same package.
  for (const char* device : {"dgx/gpu", "dgx/mlx5_"})
    EXPECT_GE(link_between(dgx, "dgx/core0", (device + std::string("7")).c_str()).ns,
              link_between(dgx, "dgx/core0", (device + std::string("0")).c_str()).ns)
        << device;
}

TEST(Connection, HostsAlongTheirRails) {
  const Topology cluster = sample("rails_two_tiers.json");
  const Connection rail = link_between(cluster, "node0/mlx5_3", "node9/mlx5_3");
  EXPECT_EQ(rail.link, LinkClass::network);
  EXPECT_EQ(rail.gb_per_s, 50);
  EXPECT_EQ(rail.vertices, (std::vector<int>{cluster.find("node0/mlx5_3"), cluster.find("rail3"),
                                             cluster.find("node9/mlx5_3")}));
  // Between GPUs of different rails, NVLink and one rail are as wide as the spines, and the way
  // crosses the network as seldom as possible.
  const Connection across = link_between(cluster, "node0/gpu0", "node15/gpu7");
  EXPECT_EQ(across.link, LinkClass::network);
  EXPECT_EQ(across.gb_per_s, 50);
  // A way between two parts of a host never leaves the host.
  EXPECT_NE(link_between(cluster, "node0/mlx5_0", "node0/mlx5_7").link, LinkClass::network);
}

TEST(Connection, NoWayThroughACardWithoutCarrierOrToNobody) {
  Topology hosts = sample("mixed_hosts.json");
  EXPECT_EQ(link_between(hosts, "cpu0/core0", "gpu1/gpu0").gb_per_s, 12.5);
  for (Vertex& vertex : hosts.vertices)
    if (vertex.kind == Kind::nic && vertex.name == "eth0") vertex.down = true;
  const Connection none = link_between(hosts, "cpu0/core0", "cpu1/core0");
  EXPECT_TRUE(none.vertices.empty());
  EXPECT_EQ(none.gb_per_s, 0);
}

}  // namespace
