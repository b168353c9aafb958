// Tests GPUs as NVIDIA's driver reports them. The program is linked with nvml_stand_in.c in place
// of the driver's library, and the machine is a file.
#include "nvml_stand_in.h"
#include "samples.h"
#include "topo/connection.h"
#include "topo/discover.h"

using namespace fsccl::topo;

namespace {

// Returns the topology of the machine in the file, which hwloc takes for this machine.
Topology discover_playing(enum nvml_play play) {
  setenv("HWLOC_XMLFILE", TOPOLOGIES "/two_nvidia_gpus.xml", 1);
  nvml_play(play);
  Topology machine = discover();
  unsetenv("HWLOC_XMLFILE");
  EXPECT_EQ(nvml_times_open(), 0);
  EXPECT_EQ(machine.all(Kind::gpu).size(), 2u);
  EXPECT_EQ(to_json(parse_json(to_json(machine), "what was written").take()), to_json(machine));
  return machine;
}

const Vertex& at(const Topology& machine, const char* path) {
  return machine.vertices.at(static_cast<size_t>(machine.find(path)));
}

Connection gpus_between(const Topology& machine, const char* a, const char* b) {
  return Graph(machine).between(machine.find(a), machine.find(b));
}

TEST(Nvidia, NameMemoryAndLinksToASwitch) {
  const Topology machine = discover_playing(NVML_PLAY_SWITCH);
  EXPECT_EQ(at(machine, "gpus/gpu0").model, "NVIDIA Stand-in 1B");
  EXPECT_EQ(at(machine, "gpus/gpu1").model, "NVIDIA Stand-in 9D");
  EXPECT_EQ(at(machine, "gpus/gpu1").bytes, uint64_t{80} << 30);
  // This is the rate of the GPU's PCIe lanes, which hwloc reports.
  EXPECT_EQ(at(machine, "gpus/gpu0").gb_per_s, 63.015385f);
  ASSERT_EQ(machine.all(Kind::nv_switch).size(), 1u);
  ASSERT_EQ(machine.links.size(), 2u);
  EXPECT_EQ(machine.links[0].gb_per_s, 450);
  EXPECT_EQ(machine.links[1].gb_per_s, 425);
  const Connection found = gpus_between(machine, "gpus/gpu0", "gpus/gpu1");
  EXPECT_EQ(found.link, LinkClass::nvlink);
  EXPECT_EQ(found.gb_per_s, 425);
}

TEST(Nvidia, LinksFromGpuToGpuAreCountedOnce) {
  const Topology machine = discover_playing(NVML_PLAY_BRIDGE);
  EXPECT_TRUE(machine.all(Kind::nv_switch).empty());
  ASSERT_EQ(machine.links.size(), 1u);
  EXPECT_EQ(machine.links[0].gb_per_s, 100);
  EXPECT_EQ(gpus_between(machine, "gpus/gpu1", "gpus/gpu0").link, LinkClass::nvlink);
}

TEST(Nvidia, WithoutADriverThereIsWhatPciTells) {
  const Topology machine = discover_playing(NVML_PLAY_NO_DRIVER);
  EXPECT_TRUE(machine.links.empty());
  EXPECT_EQ(at(machine, "gpus/gpu0").bytes, 0u);
  EXPECT_EQ(gpus_between(machine, "gpus/gpu0", "gpus/gpu1").link, LinkClass::pcie);
}

TEST(Nvidia, AFileIsNotAskedAbout) {
  nvml_play(NVML_PLAY_SWITCH);
  EXPECT_TRUE(sample("two_nvidia_gpus.xml").links.empty());
}

}  // namespace
