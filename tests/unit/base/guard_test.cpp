// Tests the guard of the public functions, and the functions that need no object: status texts,
// last error, version, dtypes, configuration.
#include "api/guard.h"
#include "fsccl/insight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/fork.h"

namespace fsccl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

fsccl_error_info_t last() {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  EXPECT_EQ(fsccl_last_error(&info), FSCCL_OK);
  return info;
}

TEST(Guard, ErrorsBecomeTheLastError) {
  EXPECT_EQ(guarded("f", [] { return success(); }), FSCCL_OK);
  EXPECT_EQ(guarded("f", [] { return fail(FSCCL_ERR_TIMEOUT, "rank {}", 5).with_peer(1, 5); }),
            FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(last().code, FSCCL_ERR_TIMEOUT);
  EXPECT_STREQ(last().operation, "f");
  EXPECT_STREQ(last().text, "rank 5");
  EXPECT_EQ(last().rank, 1);
  EXPECT_EQ(last().peer, 5);
  EXPECT_EQ(guarded("f", [] { return success(); }), FSCCL_OK);
  EXPECT_EQ(last().code, FSCCL_ERR_TIMEOUT) << "success does not clear it";
  EXPECT_EQ(guarded("g", [] { return Status(fail(FSCCL_ERR_LINK, "x").with_operation("inner")); }),
            FSCCL_ERR_LINK);
  EXPECT_STREQ(last().operation, "inner");
}

TEST(Guard, ProgressIsNoError) {
  EXPECT_EQ(guarded("f", []() -> Result<fsccl_status_t> { return FSCCL_IN_PROGRESS; }),
            FSCCL_IN_PROGRESS);
  EXPECT_EQ(guarded("f", []() -> Result<fsccl_status_t> { return fail(FSCCL_ERR_LINK, "x"); }),
            FSCCL_ERR_LINK);
}

TEST(Guard, ExceptionsBecomeStatuses) {
  EXPECT_EQ(guarded("f", []() -> Status { throw std::bad_alloc(); }), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(last().code, FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_THAT(last().text, HasSubstr("memory"));
  EXPECT_EQ(guarded("f", []() -> Status { throw std::runtime_error("why"); }), FSCCL_ERR_INTERNAL);
  EXPECT_THAT(last().text, HasSubstr("why"));
  EXPECT_STREQ(last().operation, "f");
  EXPECT_EQ(guarded("f", []() -> Status { throw 5; }), FSCCL_ERR_INTERNAL);
  EXPECT_THAT(last().text, HasSubstr("unknown type"));
}

TEST(Guard, CancelledThreadsUnwind) {
  static bool returned = false;
  std::thread thread([] {
    guarded("f", []() -> Status {
      pthread_cancel(pthread_self());
      pthread_testcancel();
      return success();
    });
    returned = true;
  });
  thread.join();
  EXPECT_FALSE(returned);
}

TEST(LastError, BelongsToItsThread) {
  set_last_error(fail(FSCCL_ERR_LINK, "here"));
  std::thread([] { EXPECT_EQ(last().code, FSCCL_OK); }).join();
  EXPECT_EQ(last().code, FSCCL_ERR_LINK);
  EXPECT_EQ(fsccl_last_error(nullptr), FSCCL_ERR_INVALID_ARGUMENT);
  fsccl_error_info_t unset{};
  EXPECT_EQ(fsccl_last_error(&unset), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(last().code, FSCCL_ERR_LINK) << "asking wrongly does not lose it";
}

TEST(Api, StatusStrings) {
  std::set<std::string> texts;
  const int known[] = {0,   1,   -1,  -2,  -3,  -4,  -5,  -6,  -7,  -20, -21,
                       -22, -40, -41, -60, -61, -62, -63, -80, -81, -100};
  for (const int code : known) {
    const char* text = fsccl_status_string(static_cast<fsccl_status_t>(code));
    EXPECT_THAT(text, StartsWith("FSCCL_")) << code;
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
  for (const int code : {2, -8, -50, -101, INT32_MIN})
    EXPECT_THAT(fsccl_status_string(static_cast<fsccl_status_t>(code)), StartsWith("unknown"));
}

TEST(Api, VersionAndDtypes) {
  int version = 0;
  EXPECT_EQ(fsccl_version(&version), FSCCL_OK);
  EXPECT_EQ(version, FSCCL_VERSION);
  EXPECT_EQ(fsccl_version(nullptr), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(fsccl_dtype_size(FSCCL_BFLOAT16), 2u);
  EXPECT_EQ(fsccl_dtype_size(FSCCL_FLOAT64), 8u);
  EXPECT_EQ(fsccl_dtype_size(FSCCL_DTYPE_COUNT), 0u);
}

TEST(Api, Configuration) {
  char text[8];
  EXPECT_EQ(fsccl_config_set("FSCCL_SPIN_US", "1234567"), FSCCL_ERR_CONFIG);
  EXPECT_THAT(last().text, HasSubstr("0 to 1000000"));
  EXPECT_STREQ(last().operation, "fsccl_config_set");
  EXPECT_EQ(fsccl_config_set("FSCCL_SPIN_US", "1000"), FSCCL_OK);
  EXPECT_EQ(fsccl_config_get("FSCCL_SPIN_US", text, 5), FSCCL_OK);
  EXPECT_STREQ(text, "1000");
  EXPECT_EQ(fsccl_config_get("FSCCL_SPIN_US", text, 4), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(last().text, AllOf(HasSubstr("5 bytes"), HasSubstr("has 4")));
  EXPECT_EQ(fsccl_config_get("FSCCL_SPIN", text, 8), FSCCL_ERR_CONFIG);
  EXPECT_EQ(fsccl_config_get(nullptr, text, 8), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(fsccl_config_get("FSCCL_SPIN_US", nullptr, 8), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(fsccl_config_set("FSCCL_SPIN_US", nullptr), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(fsccl_config_dump(nullptr, nullptr), FSCCL_ERR_INVALID_ARGUMENT);
}

TEST(Api, ConfigurationDumpMayCallBack) {
  int entries = 0;
  const auto visit = [](void* context, const fsccl_config_entry_t* entry) {
    char text[5000];
    EXPECT_EQ(fsccl_config_get(entry->name, text, sizeof text), FSCCL_OK);
    EXPECT_STREQ(text, entry->value);
    EXPECT_THAT(entry->source,
                testing::AnyOf(testing::StrEq("default"), testing::StrEq("environment"),
                               testing::StrEq("file"), testing::StrEq("api")));
    ++*static_cast<int*>(context);
  };
  EXPECT_EQ(fsccl_config_dump(visit, &entries), FSCCL_OK);
  EXPECT_GT(entries, 10);
}

TEST(Api, ForkedChildIsToldSo) {
  watch_forks();
  const pid_t child = fork();
  if (child == 0)
    _exit(fsccl_config_set("FSCCL_SPIN_US", "5") == FSCCL_ERR_FORKED &&
                  last().code == FSCCL_ERR_FORKED
              ? 0
              : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// All ranks must compute the same prices of plans, so the mode of the calling thread must not
// count.
TEST(Guard, RoundsToNearestInsideAndRestoresTheMode) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const fsccl_status_t status = guarded("a test", [] {
    volatile double one = 1;
    return one + 1e-20 == 1 ? success() : fail(FSCCL_ERR_INTERNAL, "the sum was rounded upwards");
  });
  volatile double one = 1;
  const bool restored = one + 1e-20 > 1;
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(status, FSCCL_OK);
  EXPECT_TRUE(restored);
}

}  // namespace
}  // namespace fsccl
