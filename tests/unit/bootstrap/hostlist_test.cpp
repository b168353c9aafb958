// Tests Slurm's host lists. The expected lists are those of `scontrol show hostnames`.
#include "bootstrap/hostlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsccl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> hosts(const std::string& list) {
  Result<std::vector<std::string>> result = expand_hosts(list);
  return result.ok() ? result.take()
                     : std::vector<std::string>{"refused: " + result.status().text()};
}

TEST(Hostlist, NamesRangesAndProducts) {
  EXPECT_THAT(hosts("vm"), ElementsAre("vm"));
  EXPECT_THAT(hosts("a[1-3,7],b"), ElementsAre("a1", "a2", "a3", "a7", "b"));
  EXPECT_THAT(hosts("b,a.example.org,x_1-y"), ElementsAre("b", "a.example.org", "x_1-y"));
  EXPECT_THAT(hosts("a[9-11]"), ElementsAre("a9", "a10", "a11"));
  EXPECT_THAT(hosts("a[099-101,8]"), ElementsAre("a099", "a100", "a101", "a8"));
  EXPECT_THAT(hosts("rack[0-1]n[08-09,3]"),
              ElementsAre("rack0n08", "rack0n09", "rack0n3", "rack1n08", "rack1n09", "rack1n3"));
  EXPECT_THAT(hosts("[1-2]"), ElementsAre("1", "2"));
  EXPECT_EQ(hosts("n[0-65535]").size(), kMaxHosts);
}

TEST(Hostlist, WhatIsNoListIsRefused) {
  for (const char* list : {"",
                           ",",
                           "a,",
                           ",a",
                           "a,,b",
                           "a[",
                           "a[]",
                           "a[1",
                           "a[1-",
                           "a[1-]",
                           "a[3-1]",
                           "a[1,,2]",
                           "a[-1]",
                           "a[1-2]]",
                           "a]",
                           "a[1 -2]",
                           "a b",
                           "a[+1]",
                           "a[x]",
                           "a[[1]]",
                           "a/b",
                           "a\n",
                           "(null)",
                           "a[1-99999999999]",
                           "a[0000000001]",
                           "n[0-65536]",
                           "n[0-65535],m",
                           "a[0-999]b[0-999]",
                           "a[0-2147483647]",
                           "a[0-999999999]"})
    EXPECT_EQ(expand_hosts(list).status().code(), FSCCL_ERR_CONFIG) << list;
  EXPECT_EQ(expand_hosts(std::string(256, 'a')).status().code(), FSCCL_ERR_CONFIG);
  EXPECT_EQ(expand_hosts(std::string(255, 'a') + "[1-2]").status().code(), FSCCL_ERR_CONFIG);
  EXPECT_THAT(expand_hosts("a[1-2").status().text(),
              HasSubstr("\"a[1-2\": at character 6: a comma or a closing bracket is expected"));
}

TEST(Hostlist, CountsOfNodes) {
  const auto count = [](const char* counts, int32_t node) {
    const Result<int32_t> result = count_of_node(counts, node);
    return result.ok() ? result.value() : -1;
  };
  EXPECT_EQ(count("4", 0), 4);
  EXPECT_EQ(count("3,1(x2)", 0), 3);
  EXPECT_EQ(count("3,1(x2)", 2), 1);
  EXPECT_EQ(count("3(x2),1", 1), 3);
  EXPECT_EQ(count("3(x2),1", 2), 1);
  EXPECT_EQ(count("3,1(x2)", 3), -1);
  EXPECT_EQ(count("1(x999999999),1(x999999999),1(x999999999),2", 5), 1);
  for (const char* counts : {"", "x", "4(", "4(2)", "4(x)", "4(x2", "4,", "-4", "4(x-1)", "4 ,2"})
    EXPECT_EQ(count(counts, 9), -1) << counts;
}

}  // namespace
}  // namespace fsccl
