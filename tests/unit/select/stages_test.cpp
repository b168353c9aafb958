// Tests when a collective goes by hosts: if its stages are predicted to take less time, or if a
// rule says so.
#include "select/stages.h"

#include <gtest/gtest.h>

namespace fsccl::testing {
namespace {

GroupShape job(int hosts, int per_host, const char* rules = "") {
  GroupShape whole{hosts * per_host, 128 << 10, true, {}};
  whole.select.costs = typical_costs(topo::LinkClass::network);
  whole.select.rules =
      std::make_shared<const std::vector<Rule>>(parse_rules(rules, "FSCCL_PLAN").take());
  whole.select.host_shape = {hosts, per_host};
  return whole;
}

GroupShape over_sockets(GroupShape whole) {
  whole.select.sockets = true;
  whole.select.costs = typical_costs(topo::LinkClass::network, true);
  return whole;
}

HostsChoice choice(const GroupShape& whole, OpCode op, uint64_t count,
                   HierarchyMode mode = HierarchyMode::kAuto) {
  return choose_by_hosts(op, whole.shape(count, FSCCL_UINT8), whole, mode);
}

TEST(Stages, BySize) {
  for (const OpCode op : {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce})
    EXPECT_TRUE(choice(job(2, 4), op, 1 << 20).by_hosts) << op_name(op);
  for (const OpCode op : {OpCode::all_gather, OpCode::all_reduce})
    EXPECT_FALSE(choice(job(2, 2), op, 6).by_hosts)
        << op_name(op) << ": more exchanges, for few messages less";
}

// By hosts each rank sends fewer messages, which pays for calls of any size where messages take
// long, or where each host has many ranks.
TEST(Stages, SaveMessages) {
  for (const OpCode op :
       {OpCode::all_gather, OpCode::all_reduce, OpCode::broadcast, OpCode::barrier}) {
    const uint64_t count = op == OpCode::barrier ? 0 : 6;
    EXPECT_TRUE(choice(over_sockets(job(2, 2)), op, count).by_hosts) << op_name(op);
    EXPECT_FALSE(choice(over_sockets(job(2, 2)), op, count, HierarchyMode::kAuto).asked);
    EXPECT_TRUE(choice(job(2, 16), op, count).by_hosts) << op_name(op);
  }
}

// Few bytes are not cut into parts for all lanes.
TEST(Stages, LanesCarryLargeParts) {
  const auto between = [](uint64_t count) {
    return choice(job(2, 4), OpCode::all_reduce, count).stages[1].count;
  };
  EXPECT_EQ(between(1000), 1000u);
  EXPECT_EQ(between(3 * kLeastLaneBytes), kLeastLaneBytes);
  EXPECT_EQ(between(64 * kLeastLaneBytes), 16 * kLeastLaneBytes);
}

// A measurement at the start differs each time. So it must not decide the bits of a sum, or which
// bytes are sent between hosts.
TEST(Stages, DoNotFollowWhatIsMeasured) {
  GroupShape other = job(2, 4);
  other.select.costs.origin = CostsOrigin::calibration;
  other.select.costs.exchange = 1e9;  // would make stages, which add an exchange, look slow
  other.select.costs.message = 0;
  other.select.costs.slot_cached.ns = other.select.costs.slot_streaming.ns = {0, 0, 0};
  for (const OpCode op :
       {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce, OpCode::broadcast})
    EXPECT_TRUE(choice(other, op, 1 << 20).by_hosts) << op_name(op);
}

// A tuning file gives the same times at each start, so the choice may follow it. If a link is so
// fast that bytes cost nothing, going by hosts only adds exchanges.
TEST(Stages, FollowATuningFile) {
  GroupShape other = job(2, 4);
  other.select.costs.origin = CostsOrigin::tuning_file;
  other.select.costs.slot_cached.ns = other.select.costs.slot_streaming.ns = {0, 0, 0};
  for (const OpCode op : {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce}) {
    const HostsChoice made = choice(other, op, 1 << 20);
    EXPECT_FALSE(made.by_hosts) << op_name(op);
    EXPECT_NE(made.why.find("predicted from the tuning file"), std::string::npos) << made.why;
  }
}

TEST(Stages, OfEachOperation) {
  const auto count = [](OpCode op, uint64_t elements) {
    return choice(job(2, 4), op, elements).stages.size();
  };
  EXPECT_EQ(count(OpCode::all_gather, 100), 2u);
  EXPECT_EQ(count(OpCode::all_gather_v, 100), 2u);
  EXPECT_EQ(count(OpCode::reduce_scatter, 100), 2u);
  EXPECT_EQ(count(OpCode::all_reduce, 100), 3u);
  EXPECT_EQ(count(OpCode::broadcast, 100), 3u);
  EXPECT_EQ(count(OpCode::barrier, 0), 2u);
  EXPECT_EQ(count(OpCode::gather, 100), 0u);
}

TEST(Stages, RulesAndSettings) {
  EXPECT_TRUE(choice(job(2, 2), OpCode::all_reduce, 16, HierarchyMode::kOn).by_hosts);
  EXPECT_EQ(choice(job(2, 2), OpCode::all_reduce, 16, HierarchyMode::kOn).why,
            "FSCCL_HIERARCHY says so");
  EXPECT_TRUE(choice(job(2, 2, "all_reduce=by_hosts"), OpCode::all_reduce, 16).by_hosts);
  EXPECT_FALSE(choice(job(2, 2, "all_reduce=flat"), OpCode::all_reduce, 1 << 20, HierarchyMode::kOn)
                   .by_hosts);
  EXPECT_FALSE(choice(job(2, 2, "all_reduce@2x2=slots"), OpCode::all_reduce, 1 << 20).by_hosts)
      << "a plan is flat";
  EXPECT_FALSE(
      choice(job(2, 2, "gather=slots"), OpCode::gather, 1 << 20, HierarchyMode::kOn).by_hosts);
}

}  // namespace
}  // namespace fsccl::testing
