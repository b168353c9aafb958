#include "topo/describe.h"

#include <ctime>

#include "samples.h"

using namespace fsccl::topo;

namespace {

TEST(Describe, HostsThatAreAlikeOnce) {
  const Topology hosts = sample("mixed_hosts.json");
  const std::vector<HostGroup> groups = alike(hosts);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(hosts_text(hosts, groups[0]), "gpu0 (and one alike: gpu1)");
  EXPECT_EQ(hosts_text(hosts, groups[1]), "cpu0 (and 2 alike: cpu1 .. cpu2)");
}

TEST(Describe, Numbers) {
  EXPECT_EQ(ranges({3, 1, 2, 8, 5, 6}), "1-3, 5-6, 8");
  EXPECT_EQ(ranges({}), "");
  EXPECT_EQ(amount(512), "512 B");
  EXPECT_EQ(amount(32u << 20), "32 MiB");
  EXPECT_EQ(width(0), "? GB/s");
}

TEST(Describe, TheTreeSaysWhatThereIsAndHowFar) {
  const std::string tree = to_tree(sample("dgx_h100.json"));
  for (const char* text :
       {"package1: Xeon Platinum 8480C", "numa0: 1 TiB", "56 cores, processors 56-111",
        "gpu7: H100 SXM, 64 GB/s", "gpu - gpu", "nvlink", "450 GB/s", "gpu - nic"})
    EXPECT_NE(tree.find(text), tree.npos) << text << " in\n" << tree;
}

// The time of a description grows with the number of hosts, also if no two are alike.
TEST(Describe, ManyHostsThatAreUnlikeTakeLittleTime) {
  constexpr int kHosts = 20'000;
  constexpr double kMostSeconds = 60;  // much less, but a sanitizer makes it some times longer
  Topology hosts;
  for (int i = 0; i < kHosts; i++) {
    Vertex host, core;
    host.name = "host" + std::to_string(i);
    host.bytes = static_cast<uint64_t>(i);
    core.kind = Kind::core;
    core.parent = static_cast<int>(hosts.vertices.size());
    core.name = "core0";
    hosts.vertices.push_back(std::move(host));
    hosts.vertices.push_back(std::move(core));
  }
  const std::clock_t before = std::clock();
  const std::string tree = to_tree(hosts);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, kMostSeconds);
  EXPECT_NE(tree.find("host19999"), tree.npos);
}

TEST(Describe, TheWay) {
  const Topology dgx = sample("dgx_h100.json");
  EXPECT_EQ(to_way(dgx, dgx.find("dgx/gpu0"), dgx.find("dgx/gpu1")),
            "nvlink (NVLink), 1000 ns, 450 GB/s\ndgx/gpu0 - dgx/nvswitch - dgx/gpu1\n");
}

}  // namespace
