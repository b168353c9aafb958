#include "topo/discover.h"

#include <sched.h>

#include <set>

#include "samples.h"

using namespace fsccl::topo;

namespace {

TEST(Discover, ThisMachineHasTheProcessorsThatThisProcessMayUse) {
  const Topology machine = discover();
  EXPECT_EQ(machine.all(Kind::host).size(), 1u);
  std::set<int> cpus;
  for (const int core : machine.all(Kind::core))
    for (const int cpu : machine.vertices[static_cast<size_t>(core)].cpus)
      EXPECT_TRUE(cpus.insert(cpu).second) << cpu;
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    EXPECT_TRUE(!CPU_ISSET(cpu, &set) || cpus.contains(cpu)) << cpu;
  for (size_t i = 0; i < machine.vertices.size(); i++)
    EXPECT_LT(machine.vertices[i].parent, static_cast<int>(i));
}

TEST(Discover, WhatItWritesItReads) {
  const Topology machine = discover();
  const auto again = parse_json(to_json(machine), "this machine");
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(to_json(again.value()), to_json(machine));
}

TEST(Discover, ARecordedMachine) {
  const Topology machine = sample("virtual_machine.xml");
  EXPECT_EQ(machine.vertices[0].name, "vm");
  ASSERT_EQ(machine.all(Kind::cache).size(), 1u);
  EXPECT_EQ(machine.vertices[static_cast<size_t>(machine.all(Kind::cache)[0])].bytes, 32u << 20);
  EXPECT_EQ(machine.all(Kind::core).size(), 2u);
  EXPECT_EQ(machine.all(Kind::nic).size(), 1u);
  EXPECT_EQ(machine.vertices[static_cast<size_t>(machine.all(Kind::package)[0])].model, "AMD EPYC");
}

TEST(Discover, GpusWithoutNvml) {
  setenv("HWLOC_XMLFILE", TOPOLOGIES "/two_nvidia_gpus.xml", 1);
  const Topology machine = discover();
  unsetenv("HWLOC_XMLFILE");
  EXPECT_EQ(machine.all(Kind::gpu).size(), 2u);
}

}  // namespace
