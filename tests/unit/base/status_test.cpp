// Tests errors as values: what they keep, and how they travel.
#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

namespace fsccl {
namespace {

Status refuse_odd(int number) {
  if (number % 2 != 0) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is odd", number);
  return success();
}

Result<std::unique_ptr<int>> half(int number) {
  FSCCL_TRY(refuse_odd(number));
  return std::make_unique<int>(number / 2);
}

Result<int> quarter(int number) {
  FSCCL_ASSIGN(const auto first, half(number));
  FSCCL_ASSIGN(const auto second, half(*first));
  return *second;
}

TEST(Status, SuccessIsOnePointer) {
  EXPECT_EQ(sizeof(Status), sizeof(void*));
  EXPECT_TRUE(success().ok());
  EXPECT_EQ(success().code(), FSCCL_OK);
  EXPECT_TRUE(success().clone().ok());
}

TEST(Status, ErrorKeepsItsStory) {
  const Status status =
      fail(FSCCL_ERR_TIMEOUT, "rank {} is late", 3).with_operation("all_gather").with_peer(1, 3);
  EXPECT_EQ(status.code(), FSCCL_ERR_TIMEOUT);
  const Status copy = status.clone();
  EXPECT_EQ(copy.text(), "rank 3 is late");
  EXPECT_EQ(copy.error().operation, "all_gather");
  EXPECT_EQ(copy.error().rank, 1);
  EXPECT_EQ(copy.error().peer, 3);
}

TEST(Status, ErrorsTravelThroughResults) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(7).status().text(), "7 is odd");
  EXPECT_EQ(quarter(6).status().text(), "3 is odd");
}

TEST(Status, SystemErrorsAreGrouped) {
  EXPECT_EQ(fail_errno(EMFILE, "socket").code(), FSCCL_ERR_LIMIT);
  EXPECT_EQ(fail_errno(ENOMEM, "mmap").code(), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(fail_errno(ENOSPC, "fallocate").code(), FSCCL_ERR_OUT_OF_MEMORY);
  const Status status = fail_errno(EACCES, "open /x");
  EXPECT_EQ(status.code(), FSCCL_ERR_SYSTEM);
  EXPECT_EQ(status.text(), "open /x: Permission denied");
}

}  // namespace
}  // namespace fsccl
