#include "perf/numbers.h"

#include <gtest/gtest.h>

namespace fsccl::perf {
namespace {

TEST(ParseBytes, AcceptsNumbersWithAndWithoutUnits) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("64kB"), 65536u);
  EXPECT_EQ(parse_bytes("1.5M"), 1572864u);
  EXPECT_EQ(parse_bytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(parse_bytes("1T"), uint64_t{1} << 40);
  EXPECT_EQ(parse_bytes("12B"), 12u);
}

TEST(ParseBytes, RejectsEverythingElse) {
  for (const char* text : {"", " ", "K", "-1", "1X", "1KK", "64 K", "1.5", "0.3K", "nan", "inf",
                           "1e3", "0x10", "4194304T", "99999999999999999999", "iB", "1iB"})
    EXPECT_FALSE(parse_bytes(text).has_value()) << text;
}

TEST(FormatBytes, PicksTheUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(uint64_t{3} << 30), "3.00 GiB");
}

TEST(Names, OfDtypesAndOperators) {
  EXPECT_EQ(parse_dtype("bf16"), FSCCL_BFLOAT16);
  EXPECT_EQ(parse_dtype("bfloat16"), FSCCL_BFLOAT16);
  EXPECT_EQ(parse_dtype("float"), FSCCL_FLOAT32);
  EXPECT_FALSE(parse_dtype("fp8").has_value());
  for (const DtypeName& entry : reducible_dtypes())
    EXPECT_STREQ(dtype_name(*parse_dtype(entry.name)), entry.name);
  for (const char* name : {"sum", "avg", "min", "max", "prod", "mulsum"})
    EXPECT_STREQ(op_name(parse_op(name)->kind), name);
  EXPECT_EQ(parse_op("premul")->kind, FSCCL_OP_PREMUL_SUM);
  EXPECT_FALSE(parse_op("median").has_value());
  EXPECT_STREQ(op_name(99), "unknown");
}

TEST(Percentile, IsLinearBetweenNeighbours) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10}, 0.1), 1);
}

TEST(SizeSweep, MultipliesUpToTheLast) {
  EXPECT_EQ(size_sweep(8, 128, 4), (std::vector<uint64_t>{8, 32, 128}));
  EXPECT_EQ(size_sweep(8, 127, 4), (std::vector<uint64_t>{8, 32}));
  EXPECT_EQ(size_sweep(8, 128, 1), (std::vector<uint64_t>{8}));
  EXPECT_EQ(size_sweep(0, 128, 2), (std::vector<uint64_t>{0}));
  EXPECT_TRUE(size_sweep(256, 128, 2).empty());
  EXPECT_EQ(size_sweep(8, 11, 1.1), (std::vector<uint64_t>{8, 9, 10, 11}));
  EXPECT_EQ(size_sweep(8, uint64_t{1} << 30, 1.0000000001).size(), kMostSizes + 1);
}

TEST(SizeSteps, AddsUpToTheLast) {
  EXPECT_EQ(size_steps(8, 32, 12), (std::vector<uint64_t>{8, 20, 32}));
  EXPECT_EQ(size_steps(8, 31, 12), (std::vector<uint64_t>{8, 20}));
  EXPECT_EQ(size_steps(8, 31, 0), (std::vector<uint64_t>{8}));
  EXPECT_EQ(size_steps(0, UINT64_MAX, UINT64_MAX), (std::vector<uint64_t>{0, UINT64_MAX}));
  EXPECT_TRUE(size_steps(32, 31, 1).empty());
}

}  // namespace
}  // namespace fsccl::perf
