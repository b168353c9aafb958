// Tests at which place ranks that know only their launcher meet, and which files with a secret are
// accepted.
#include "bootstrap/environment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;

TEST(Environment, SeveralHostsNeedASecretAPortAndTcp) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::kTorchrun;
  launch.rank = 3;
  launch.ranks = 8;
  launch.job = "job";
  launch.master_address = "127.0.0.1";
  launch.master_port = 29500;
  Config settings = *config();
  settings.job_secret_file.clear();
  settings.insecure = false;
  settings.bootstrap_tcp = true;
  const auto meet = [&] {
    return meet_from_environment(launch, settings, 0, Deadline::in_ms(100));
  };
  const Status no_secret = meet().take_status();
  EXPECT_EQ(no_secret.code(), FSCCL_ERR_AUTH);
  EXPECT_THAT(no_secret.text(), HasSubstr("FSCCL_JOB_SECRET_FILE"));
  EXPECT_THAT(no_secret.text(), HasSubstr("FSCCL_INSECURE=1"));
  settings.insecure = true;
  const Result<RendezvousPoint> place = meet();
  ASSERT_TRUE(place.ok()) << place.status().text();
  EXPECT_EQ(port_of(place.value().addresses.at(0)), 29501);
  settings.bootstrap_port = 4242;
  EXPECT_EQ(port_of(meet().value().addresses.at(0)), 4242);
  settings.bootstrap_tcp = false;
  EXPECT_THAT(meet().status().text(),
              HasSubstr("torchrun says that the 8 ranks are on several hosts"));
  settings.bootstrap_tcp = true;
  launch.master_address.clear();
  EXPECT_THAT(meet().status().text(), HasSubstr("MASTER_ADDR is not set"));
}

class SecretFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fsccl-secret-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = name;
    path = folder + "/secret";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  void write_file(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path, std::ios::trunc) << text;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  std::string folder, path;
};

TEST_F(SecretFile, ItsContentDecides) {
  write_file("0123456789abcdef0123456789abcdef\n");
  const SecretKey one = read_secret_file(path).take();
  write_file("0123456789abcdef0123456789abcdef");  // without the newline of an editor
  const SecretKey same = read_secret_file(path).take();
  write_file("0123456789abcdef0123456789abcdeg");
  const SecretKey other = read_secret_file(path).take();
  EXPECT_EQ(std::memcmp(one.data(), same.data(), kKeyBytes), 0);
  EXPECT_NE(std::memcmp(one.data(), other.data(), kKeyBytes), 0);
}

TEST_F(SecretFile, WhatCannotBeTrustedIsRefused) {
  EXPECT_EQ(read_secret_file(path).status().code(), FSCCL_ERR_CONFIG);  // there is no file
  write_file("0123456789abcdef0123456789abcdef", 0640);
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("chmod 600"));
  write_file("short");
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("at least 16"));
  write_file(std::string(5000, 'x'));
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("longer than"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  // Opening a FIFO does not wait for a writer.
  EXPECT_THAT(read_secret_file(path).status().text(), HasSubstr("not a regular file"));
}

TEST(MemberInfo, StartTimeSurvivesOddProgramNames) {
  std::string stat = "12 (a) b (c d) S";
  for (int field = 4; field < 22; ++field) stat += fmt::format(" {}", field);
  EXPECT_EQ(parse_start_time(stat + " 777 23"), 777u);
  EXPECT_EQ(parse_start_time(stat), 0u);
  EXPECT_EQ(parse_start_time("nothing"), 0u);
  EXPECT_GT(describe_process("").start_time, 0u);
}

TEST(MemberInfo, HostNumber) {
  EXPECT_EQ(host_number(""), host_number(""));
  EXPECT_EQ(host_number("a"), host_number("a"));
  EXPECT_NE(host_number("a"), host_number("b"));
  EXPECT_NE(host_number("a"), host_number(""));
}

}  // namespace
}  // namespace fsccl
