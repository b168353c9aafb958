// Tests the text about two calls that differ. It names the field and both values. If only earlier
// calls differ, it says which calls these can be.
#include "plan/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "record/message_names.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Fingerprint call(OpCode op) {
  Fingerprint what;
  what.op = op;
  what.count = 10;
  what.sequence = 15;
  what.history = 7;
  return what;
}

std::string when_history_differs(OpCode op, uint64_t unheard) {
  Fingerprint other = call(op);
  other.history = 8;
  return difference(call(op), other, {.unheard = unheard});
}

TEST(Fingerprint, ADifferentFieldIsNamedWithBothValues) {
  Fingerprint other = call(OpCode::broadcast);
  other.count = 20;
  other.root = 2;
  other.history = 8;  // the history usually follows from the other fields
  EXPECT_EQ(difference(call(OpCode::broadcast), other, {.unheard = 12}),
            "count 10 and 20, root -1 and 2");
}

// The program called the collective and knows nothing of its stages.
TEST(Fingerprint, AStageIsNamedWithItsCollective) {
  const auto stage = [](OpCode op, OpCode whole) {
    Fingerprint what = call(op);
    what.flags = static_cast<uint8_t>(whole);
    return what;
  };
  const Fingerprint sum = stage(OpCode::reduce_scatter, OpCode::all_reduce);
  EXPECT_STREQ(name_for(0, sum), "all_reduce");
  EXPECT_THAT(describe_for(0, sum), StartsWith("all_reduce, in its stage reduce_scatter of 10 "));
  EXPECT_EQ(difference(sum, stage(OpCode::reduce_scatter, OpCode::reduce_scatter), {}),
            "operation all_reduce and reduce_scatter");
  EXPECT_EQ(difference(sum, stage(OpCode::all_gather, OpCode::all_reduce), {}),
            "stage reduce_scatter and all_gather");
  EXPECT_THAT(difference(sum, call(OpCode::reduce_scatter), {}),
              StartsWith("operation all_reduce and reduce_scatter"));
}

// The flags of a unit's operation are its mode.
TEST(Fingerprint, ModesOfUnitsAreNamed) {
  Fingerprint other = call(OpCode::unshard);
  other.flags = 2;
  EXPECT_EQ(difference(call(OpCode::unshard), other, {}), "mode 0 and 2");
}

TEST(Fingerprint, EveryFieldIsComparedAndNamed) {
  Fingerprint other = call(OpCode::reduce);
  // If the fingerprint gets another field, this does not compile, so the field is not forgotten.
  auto& [op, dtype, kind, flags, root, count, sequence, history] = other;
  const auto differs = [&](auto& field, auto value, const char* word) {
    const auto before = std::exchange(field, value);
    EXPECT_FALSE(equal(call(OpCode::reduce), &other)) << word;
    EXPECT_THAT(difference(call(OpCode::reduce), other, {}), HasSubstr(word));
    EXPECT_EQ(gist_of(call(OpCode::reduce)) == gist_of(other),
              &field == static_cast<void*>(&sequence))
        << word;
    field = before;
  };
  differs(op, OpCode::all_reduce, "operation reduce and all_reduce");
  differs(dtype, uint8_t{FSCCL_FLOAT64}, "dtype");
  differs(kind, uint8_t{FSCCL_OP_MAX}, "operator sum and max");
  differs(flags, uint8_t{2}, "operation reduce and all_gather");
  differs(root, 3, "root -1 and 3");
  differs(count, uint64_t{11}, "count 10 and 11");
  differs(sequence, uint64_t{16}, "sequence number 15 and 16");
  differs(history, uint64_t{8}, "history");
  EXPECT_TRUE(equal(call(OpCode::reduce), &other));
}

TEST(Fingerprint, WhereOnlyTheHistoryDiffersItSaysWhatThatIs) {
  EXPECT_THAT(when_history_differs(OpCode::barrier, 0), HasSubstr("collective memory events"));
  EXPECT_THAT(when_history_differs(OpCode::all_gather_v, 0),
              HasSubstr("counts of the ranks' parts"));
  EXPECT_THAT(when_history_differs(OpCode::broadcast_list, 0),
              HasSubstr("types or parts of the tensors"));
  EXPECT_THAT(when_history_differs(OpCode::barrier, 0), Not(HasSubstr("from operation")));
}

TEST(Fingerprint, AnotherScaleIsNoMemoryEvent) {
  for (const OpCode op : {OpCode::all_reduce, OpCode::reduce_scatter, OpCode::reduce,
                          OpCode::reduce_scatter_v, OpCode::reduce_scatter_list}) {
    Fingerprint mine, theirs;
    mine.op = theirs.op = op;
    mine.kind = theirs.kind = FSCCL_OP_PREMUL_SUM;
    mine.history = 1, theirs.history = 2;
    EXPECT_THAT(difference(mine, theirs, {}), HasSubstr("the scale of fsccl_premul_sum()"));
    EXPECT_THAT(difference(mine, theirs, {}), Not(HasSubstr("memory events")));
    mine.kind = theirs.kind = FSCCL_OP_SUM;
    EXPECT_THAT(difference(mine, theirs, {}), Not(HasSubstr("premul")));
  }
}

TEST(Fingerprint, CallSitesThatDifferAreBothNamed) {
  const uint64_t before = 7, mine = 0x1111222233334444, theirs = 0x00000000deadbeef;
  Fingerprint here = call(OpCode::all_reduce), there = here;
  here.history = before ^ mine;
  there.history = before ^ theirs;
  const char* const both = "site 0x1111222233334444 and site 0x00000000deadbeef";
  EXPECT_EQ(difference(here, there, {.site = mine}), both);
  there.count = 20;
  EXPECT_EQ(difference(here, there, {.site = mine}), std::string("count 10 and 20, ") + both);
  here.op = there.op = OpCode::all_gather_list;
  there.count = here.count;
  EXPECT_EQ(difference(here, there, {.site = mine}),
            std::string(both) + ", or the types or parts of the tensors");
  there.history = here.history;
  EXPECT_EQ(difference(here, there, {.site = mine}), "");
}

TEST(Fingerprint, AMessageIsARecvWhereItArrives) {
  Fingerprint message;
  message.op = OpCode::send;
  message.count = 8;
  message.dtype = FSCCL_UINT8;
  EXPECT_THAT(describe_for(0, message), StartsWith("send of 8 uint8 with tag 0"));
  EXPECT_THAT(describe_for(1, message), StartsWith("recv of 8 uint8 with tag 0"));
  EXPECT_STREQ(name_for(1, message), "recv");
  message.op = OpCode::gather;
  EXPECT_THAT(describe_for(1, message), StartsWith("gather of 8"));
}

TEST(Fingerprint, ACallThatWasNotComparedByItselfMayBeTheOne) {
  EXPECT_THAT(when_history_differs(OpCode::barrier, 12), HasSubstr("a call from operation 12 on"));
  EXPECT_THAT(when_history_differs(OpCode::all_gather_v, 12),
              HasSubstr("counts of the ranks' parts"));
  EXPECT_THAT(when_history_differs(OpCode::send, 12), HasSubstr("tag 7 and 8"));
}

}  // namespace
}  // namespace fsccl
